"""What training costs on more than one GPU, by arithmetic and as it is measured: `python -m model.bench scale`.

    cases.py     the models, with the sizes that count
    rates.py     how fast a GPU and its wires are, and where each figure comes from
    cost.py      the model: bytes through each wire, look-ups, memory and the parts of a step
    cells.py     what is measured
    measuring.py starts the ranks that measure it, judges it, records it
    rank.py      what a rank measures
    exchanges.py the exchanges of a step, by themselves
    measured.py  a record of steps on several GPUs beside what was predicted for them
    picture.py   the estimates as a picture
    command.py   the command, and the estimates as a table
"""
