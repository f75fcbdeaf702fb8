"""Training by several processes, of a host's GPUs or of several hosts, as torchrun starts them.

    pieces.py        the tables in pieces, and which rank holds which
    placement.py     the same by the pieces' sizes alone
    exchange.py      ids to the pieces' ranks, vectors back, their gradients there: all_to_all
    sparse_arch.py   the look-ups and updates of a rank's own pieces, by the repository's kernels
    batches.py       which rows of a step are whose
    step.py          a training step: one all_reduce for the MLPs, the loss, and a signal that came
    evaluation.py    predictions of all ranks, scored by the first
    ranks.py         the process group; how an error of one ends all, with one message
    beats.py         how a rank is known to live, and what is made of one that is silent
    run.py           a run's state in a checkpoint that any number of ranks reads
    checkpoints.py   that checkpoint: a folder; and a single file made of it

A rank is a process; its rows of a step are its own, and so are its pieces of the tables. MLPs are the same on all.
"""
