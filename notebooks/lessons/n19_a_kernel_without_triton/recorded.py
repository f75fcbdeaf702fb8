"""What a launch cost on an H200, by notebook 11's record of calls; of kernels.cubin there is none yet."""

from __future__ import annotations

from lessons.shared.records import Record, spread

MAKE_OP = Record("make_op")
# Name in the record → what the notebook calls it.
RUNGS = {
    "launcher, output given": "Triton's launcher",
    "x + 1": "x + 1 of PyTorch's",
    "triton": "an op: a cubin, behind torch's dispatcher",
    "graph of 1": "the replay of a CUDA graph with one op",
}
OURS = ("kernels.cubin, from Python", "kernels.cubin, from C++")


def show() -> None:
    """A line a rung: µs of a call from Python, of 64 by 64 numbers."""
    gpu, torch, triton = map(MAKE_OP.head, ("GPU", "torch", "triton"))
    print(f"recorded on {gpu}, torch {torch}, triton {triton}: µs a call")
    for name, called in RUNGS.items():
        print(f"{called:42} {spread(MAKE_OP.one('call', name=name), 5)}")
    for name in OURS:
        print(f"{name:42} no record yet")
