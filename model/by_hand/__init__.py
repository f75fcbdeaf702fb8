"""DLRM written, counted and drawn by hand, for the reader who begins.

    puzzles.py    its parts as puzzles, each held against the model's own
    training.py   the parts that the reader wrote, trained on the sample
    costs.py      FLOPs, and bytes as PyTorch moves them and as one kernel would
    drawing.py    the pictures
"""
