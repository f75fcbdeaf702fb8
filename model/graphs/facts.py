"""What the records say of CUDA graphs: the story's steps without and with one, memory, the price of a launch."""

from __future__ import annotations

import json

import numpy as np

from kernels.measure import records
from kernels.measure.verdict import verdict
from model.graphs.record import NAME, PROG
from model.profiling.tables import TRACES

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
    }  # fmt: skip


def whole(part: str, implementation: str, rows: int = 2048) -> dict:
    """A training step of the whole model, SGD: ms, peak_mb, …"""
    found = records.recorded("whole_model")
    chosen = found[
        (found["part"] == part) & (found["implementation"] == implementation) & (found["rows"] == rows)
        & (found["optimizer"] == "sgd")
    ]  # fmt: skip
    assert len(chosen) == 1, f"{part}, {implementation}, {rows}: {len(chosen)} rows"
    return chosen.iloc[0].to_dict()


def above_tables_mb(part: str, implementation: str, rows: int = 2048) -> float:
    """MB at the peak of that step, beyond tables and the optimizer's state."""
    found = whole(part, implementation, rows)
    return found["peak_mb"] - found["floor_mb"]


def row(part: str, variant: str, **labels) -> dict:
    """A row of the record of graphs; FileNotFoundError if nothing is recorded."""
    found = records.recorded(NAME)
    for name, value in ({"part": part, "variant": variant} | labels).items():
        found = found[found[name] == value]
    assert len(found) == 1, f"{part}, {variant}, {labels}: {len(found)} rows"
    return found.iloc[0].to_dict()


def us(part: str, variant: str, **labels) -> float:
    return float(np.median(row(part, variant, **labels)["us"]))


def launch_us(name: str = "08_main_dot") -> float:
    """What a launch costs the host in a step, with all of Python around it: its time over its launches."""
    found = step(name)
    return 1e3 * found["ms"] / found["launches"]


def chain_us() -> float:
    """What a launch costs the host in a chain of `x + 1`, recorded; of step 08 where nothing is."""
    try:
        return us("replay", "eager", kernels=64, bytes=1 << 12) / 64
    except FileNotFoundError:
        return launch_us()


def copy_us(moved: float) -> float:
    """µs to copy so many bytes on the device, at the rate of the record: they are read and written."""
    return 2 * moved / (1e6 * records.recorded("add_relu").attrs["copy_tb_per_s"]["limit"])


def judge(what: str, predicted: float | None, part: str, variant: str, column: str, unit: str, why: str, **labels):
    """The verdict on what is recorded, or how to record it."""
    try:
        value = row(part, variant, **labels)[column]
    except FileNotFoundError:
        print(f"{what}: predicted {predicted} {unit}; no record yet: `{PROG} --save`, on a GPU, makes one")
        return
    verdict(what, predicted, float(np.median(value)), unit, why, how="recorded")


def late() -> None:
    """Print what was found in an output that was read after the next run."""
    for before in range(4):
        try:
            print(f"{before} runs before: {row('late', 'reduce-overhead', before=before)['found']}")
        except FileNotFoundError:
            print(f"{before} runs before: no record yet; `{PROG} --save`, on a GPU, makes one")
