"""What the records say of CUDA graphs: traced steps without and with one, late reads, memory, what a replay costs."""

from __future__ import annotations

import json

import numpy as np

from lessons.shared.records import Record
from model.profiling.tables import TRACES

GRAPHS = Record("cuda_graphs")
COMMAND = "python -m lessons.n05_cuda_graphs_and_memory --save"
COMPILED, REDUCED = "09_main_dot_compiled", "10_main_dot_cuda_graphs"
FUSED, GRAPHED = "16_full_adagrad_fused", "19_full_adagrad_graph"  # the last two rows of 03's table
SMALL = 1 << 12  # bytes: what a kernel does with so few takes next to no time


def step(name: str) -> dict[str, float]:
    """A traced step: ms, launches by the host, kernels, ms of these, µs of copies on the GPU, MB at the peak."""
    run = json.loads((TRACES / name / "run.json").read_text())
    facts, copies = run["facts"], sum(row["us"] for row in run["key_averages"] if "Memcpy" in row["name"])
    return {
        "ms": run["step_ms"], "launches": facts["launches"], "kernels": facts["kernels"],
        "busy_ms": facts["busy_us"] / 1e3, "copy_us": copies / run["active_steps"], "peak_mb": run["peak_bytes"] / 1e6,
    }


def rounds_us(way: str, kernels: int, size: int) -> np.ndarray:
    """µs of each round of a chain of so many kernels on so many bytes, by "eager", "copy and replay" or "replay"."""
    return np.asarray(GRAPHS.one("replay", variant=way, kernels=kernels, bytes=size)["us"])


def saved_us(kernels: int, size: int) -> tuple[float, float, float]:
    """Percentiles 20, 50 and 80 of what copy and replay save of eager, round by round."""
    saved = rounds_us("eager", kernels, size) - rounds_us("copy and replay", kernels, size)
    return tuple(float(value) for value in np.quantile(saved, (0.2, 0.5, 0.8)))


def launch_us() -> float:
    """What a launch costs the host in a chain of `x + 1`."""
    return float(np.median(rounds_us("eager", 64, SMALL))) / 64


def replay_us() -> float:
    """What a replay costs of a graph of one kernel with next to nothing to do."""
    return float(np.median(rounds_us("replay", 1, SMALL)))


def late(runs: int) -> str:
    """What was found in a result that was read after the next call, after so many calls."""
    text = GRAPHS.one("late", variant="reduce-overhead", before=runs)["found"]
    return text.replace("run's", "call's")


def last_forward(variant: str) -> float:
    """ms of the last of 8 forwards whose backward never ran."""
    return float(GRAPHS.one("pending", variant=variant)["last_ms"])


def show_own_step() -> None:
    """Print what was recorded of 01's step, in eager and as a graph."""
    try:
        record = GRAPHS.with_part("own_step")
    except LookupError:
        print(f"This step as a graph has not been recorded yet. On a GPU, `{COMMAND}` records it.")
        return
    for _, row in record.rows("own_step").iterrows():
        low, middle, high = np.quantile(row["us"], (0.2, 0.5, 0.8))
        print(f"RECORDED, {record.head('GPU')}: {row['variant']:<6} {middle:8,.0f} µs ({low:,.0f} to {high:,.0f})")
