"""Who waits for whom in a recorded step, and what a launch costs host and GPU."""

import json
from pathlib import Path

import pandas as pd

from kernels.measure.records import recorded
from model.profiling.phases import by_phase
from model.profiling.tables import TRACES
from model.profiling.trace import GPU, Trace, read

# Records in which `x + 1` on 64 × 64 numbers was called from Python, as a yardstick; the first is quoted.
YARDSTICKS = ("add_relu", "add_mul_activation", "fused_mlp", "softmax")
HOST_BOUND, GPU_BOUND, GRAPH = "08_main_dot", "06_main_outer", "10_main_dot_cuda_graphs"


def call_us() -> list[float]:
    """µs of the host for a call of `x + 1`, of each record."""
    tables = (recorded(op) for op in YARDSTICKS)
    return [float(table.loc[table["implementation"] == "x + 1", "call_us"].iloc[0]) for table in tables]


def between_us(trace: Trace | str | Path, step: int = 1) -> float:
    """Median µs from the end of a kernel to the beginning of the next one. With a full queue it is the GPU's own."""
    work = read(trace).of(*GPU).query("step == @step").sort_values("ts")
    return float((work["ts"] - work["end"].shift()).median())


def small_us() -> float:
    """Mean µs of a kernel of the hash, on a few thousand numbers."""
    hashes = by_phase(TRACES / GPU_BOUND).loc["hash"]
    return float(hashes["kernels µs"] / hashes["launches"])


def step_us(name: str, traces: Path = TRACES) -> tuple[float, float]:
    """(µs, launches) of a recorded step, without the profiler."""
    run = json.loads((traces / name / "run.json").read_text())
    return 1e3 * run["step_ms"], run["facts"]["launches"]


def busy_percent(name: str, traces: Path = TRACES) -> float:
    """The time in which the GPU works, of the step without the profiler, which slows the host and not the kernels."""
    run = json.loads((traces / name / "run.json").read_text())
    return run["facts"]["busy_us"] / (10 * run["step_ms"])


def prices() -> pd.DataFrame:
    """A row a price: who pays, µs a launch, and what for."""
    whole, launches = step_us(HOST_BOUND)
    rows = [
        ("host", call_us()[0], "x + 1, called from Python"),
        ("host", whole / launches, f"{HOST_BOUND}: the step over its {launches:.0f} launches"),
        ("GPU", between_us(TRACES / GPU_BOUND), f"{GPU_BOUND}, a full queue: from a kernel's end to the next begin"),
        ("GPU", between_us(TRACES / GRAPH), f"{GRAPH}: the same gap in a CUDA graph"),
        ("GPU", between_us(TRACES / GPU_BOUND) + small_us(), f"{GPU_BOUND}: this gap and a small kernel, of the hash"),
    ]
    return pd.DataFrame(rows, columns=["who pays", "µs", "what"])
