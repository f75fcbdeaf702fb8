"""What the records say of CUDA graphs: the story's steps without and with one, memory, the price of a launch."""

from __future__ import annotations

import json

import numpy as np

from kernels.measure.verdict import verdict
from lessons.shared.records import Record
from model.profiling.tables import TRACES

GRAPHS, WHOLE_MODEL = Record("cuda_graphs"), Record("whole_model")
PAIRS = (
    ("09_main_dot_compiled", "10_main_dot_cuda_graphs"),
    ("15_full_sgd_fused", "18_full_sgd_graph"),
    ("16_full_adagrad_fused", "19_full_adagrad_graph"),
)


def step(name: str) -> dict[str, float]:
    """A step of the story: ms, launches by the host, kernels, ms of these, MB at the peak."""
    run = json.loads((TRACES / name / "run.json").read_text())
    found = run["facts"]
    return {
        "ms": run["step_ms"], "launches": found["launches"], "kernels": found["kernels"],
        "busy_ms": found["busy_us"] / 1e3, "peak_mb": run["peak_bytes"] / 1e6,
    }


def whole(part: str, implementation: str, rows: int = 2048) -> dict:
    """A training step of the whole model, SGD: ms, peak_mb, …"""
    return WHOLE_MODEL.one(part, implementation=implementation, rows=rows, optimizer="sgd").to_dict()


def above_tables_mb(part: str, implementation: str, rows: int = 2048) -> float:
    """MB at the peak of that step, beyond tables and the optimizer's state."""
    found = whole(part, implementation, rows)
    return found["peak_mb"] - found["floor_mb"]


def launch_us(name: str = "08_main_dot") -> float:
    """What a launch costs the host in a step, with all of Python around it: its time over its launches."""
    found = step(name)
    return 1e3 * found["ms"] / found["launches"]


def chain_us() -> float:
    """What a launch costs the host in a chain of `x + 1`."""
    return GRAPHS.us("replay", variant="eager", kernels=64, bytes=1 << 12) / 64


def judge(what: str, predicted: float | None, part: str, variant: str, column: str, unit: str, why: str, **labels):
    """The verdict on what is recorded."""
    value = GRAPHS.one(part, variant=variant, **labels)[column]
    verdict(what, predicted, float(np.median(value)), unit, why, how="recorded")


def print_late() -> None:
    """Print what was found in an output that was read after the next run."""
    for before in range(4):
        print(f"{before} runs before: {GRAPHS.one('late', variant='reduce-overhead', before=before)['found']}")
