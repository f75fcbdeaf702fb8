"""What a launch cost: on an H200 by notebook 11's record of calls, and by kernels.cubin's on the GPU that it names."""

from __future__ import annotations

from lessons.shared.records import Record, spread

MAKE_OP, LAUNCHES = Record("make_op"), Record("launches")
# Name in the record → what the notebook calls it.
RUNGS = {
    "launcher, output given": "Triton's launcher",
    "x + 1": "x + 1 of PyTorch's",
    "triton": "an op: a cubin, behind torch's dispatcher",
    "graph of 1": "the replay of a CUDA graph with one op",
}


def show() -> None:
    """A line a rung: µs of a call from Python, of 64 by 64 numbers; then of the launches of kernels.cubin's bench."""
    print(f"{recorded_on(MAKE_OP)}: µs a call")
    for name, called in RUNGS.items():
        print(f"{called:42} {spread(MAKE_OP.one('call', name=name), 5)}")
    launches = LAUNCHES.with_part("launch")
    print(f"{recorded_on(launches)}: µs a launch of 1,024 numbers, with the least and the greatest")
    for _, row in launches.rows("launch").iterrows():
        print(f"{row['name']:42} {row['us']:5.1f} ({row['low']:.1f} to {row['high']:.1f})")


def recorded_on(record: Record) -> str:
    gpu, torch, triton = map(record.head, ("GPU", "torch", "triton"))
    return f"recorded on {gpu}, torch {torch}, triton {triton}"
