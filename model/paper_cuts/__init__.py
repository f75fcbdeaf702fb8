"""Paper cuts: what slows a training step and computes nothing that the model needs.

    record.py      measures each change alone, by turns: python -m model.paper_cuts --save
    facts.py       what that record and the story's traces say
    drawing.py     the same as pictures
    two_queues.py  what a wait costs, by arithmetic: a host that launches, a GPU that runs what was launched
    puzzles.py     what the lecture's puzzles must compute
    here.py        what its cells headed "On your machine" print
"""
