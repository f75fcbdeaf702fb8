"""The least time that each operator of a recorded step can take on the GPU, beside what it took.

    floor of an operator = max(bytes / bandwidth, FLOPs / peak)
    floor of a step      = the sum of its operators' floors, since they run one after another

Bytes: what it reads and writes, each tensor once, by the shapes that the trace recorded. What still lies in the L2
cache comes faster than the memory's bandwidth allows, so a small operator can beat its floor.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch

from lessons.shared.records import FLOAT32, yardstick
from model.config import DLRMConfig
from model.dlrm import DLRM
from model.profiling.phases import work_by_phase
from model.profiling.tables import TRACES
from model.profiling.trace import Trace, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TINY = 1.0  # µs: below it no floor says what holds a kernel
COLOURS = {"bytes": "#e8912d", "FLOPs": "#1f5fa8", f"less than {TINY:.0f} µs": "#9aa5b1"}
_BYTES = {"double": 8, "long int": 8, "short": 2, "bool": 1, "c10::Half": 2, "c10::BFloat16": 2}  # others: 4
_SUMMED = ("us", "floor_us", "bytes", "FLOPs")
_PRODUCTS = ("addmm", "mm", "bmm")


def floors(
    trace: Trace | str | Path, bandwidth: float, peak: float = FLOAT32, step: int = 1, parameters: int = 0
) -> pd.DataFrame:
    """A row an operator that launches something in the step, in their order on the GPU.

    Columns: phase, name, kernels, us (its kernels' durations), bytes, FLOPs (of matrix products), memory_us,
    compute_us, floor_us (the larger one), bound ("memory" | "compute": which that is).

    Args:
        bandwidth: bytes a second. peak: FLOPs a second.
        parameters: of the model, which the optimizer reads and writes: no trace has the shapes of its lists.
    """
    trace = read(trace)
    work = work_by_phase(trace, step)
    operators = trace.of("cpu_op").drop_duplicates("external").set_index("external")
    rows = []
    for external, kernels in work.groupby("external", sort=False):
        operator = operators.loc[external]
        name = operator["name"].removeprefix("aten::")
        moved, flops = needed(name, operator["shapes"] or [], operator["types"] or [], parameters)
        rows.append((kernels["phase"].iloc[0], name, len(kernels), kernels["dur"].sum(), moved, flops))
    table = pd.DataFrame(rows, columns=["phase", "name", "kernels", "us", "bytes", "FLOPs"])
    table["memory_us"], table["compute_us"] = 1e6 * table["bytes"] / bandwidth, 1e6 * table["FLOPs"] / peak
    table["floor_us"] = table[["memory_us", "compute_us"]].max(axis=1)
    table["bound"] = (table["memory_us"] >= table["compute_us"]).map({True: "memory", False: "compute"})
    return table


def needed(name: str, shapes: list, types: list, parameters: int = 0) -> tuple[int, int]:
    """(bytes, FLOPs) of an operator on inputs of these shapes, at the least: what the trace does not say counts 0."""
    tensors = [(shape, _BYTES.get(kind, 4)) for shape, kind in zip(shapes, types, strict=True) if shape]
    sizes = [math.prod(shape) * width for shape, width in tensors if not isinstance(shape[0], list)]
    if name == "_fused_sgd_":
        return 12 * parameters, 0  # a parameter and its gradient in, the parameter out
    if name == "cat":
        return 2 * sum(4 * math.prod(shape) for shape in shapes[0]), 0
    if not sizes:
        return 0, 0
    if name in _PRODUCTS:
        (*batch, rows, depth), (*_, columns) = (shape for shape, _ in tensors[-2:])
        flops = 2 * math.prod(batch) * rows * depth * columns
        return sum(sizes) + 4 * math.prod(batch) * rows * columns, flops
    if name == "gather":  # the look-up: an id for each row, expanded to its width; the rows in, and out
        return 8 * tensors[1][0][0] + min(sizes[0], sizes[-1]) + sizes[-1], 0
    if name in ("copy_", "_index_put_impl_"):  # from the last input into the first
        return 2 * sizes[-1], 0
    if name in ("fill_", "sum", "mean", "embedding_dense_backward", "index"):
        return sum(sizes), 0
    widest = torch.broadcast_shapes(*(shape for shape, _ in tensors))
    return sum(sizes) + math.prod(widest) * tensors[0][1], 0


def copy_rate() -> float:
    """Bytes a second that a copy on an H200 moves, read and written: the record that all notebooks take."""
    return 1e12 * yardstick()


def recorded_floors(name: str, peak: float = FLOAT32, traces: Path = TRACES) -> pd.DataFrame:
    """floors() of a recorded step of the story on an H200, its model's parameters counted."""
    config = json.loads((traces / name / "run.json").read_text())["config"]["model"]
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in DLRM(DLRMConfig(**config)).parameters())
    return floors(traces / name, copy_rate(), peak, parameters=parameters)


def slowest(table: pd.DataFrame, rows: int = 6) -> pd.DataFrame:
    """The operators on which the GPU spends most: calls, ms and the floor's ms of all, TB/s and TFLOP/s."""
    found = table.groupby("name").agg(calls=("us", "size"), **{name: (name, "sum") for name in _SUMMED})
    found = found.nlargest(rows, "us")
    rates = {"TB/s": found["bytes"] / found["us"] / 1e6, "TFLOP/s": found["FLOPs"] / found["us"] / 1e6}
    return found[["calls"]].assign(ms=found["us"] / 1e3, **{"floor, ms": found["floor_us"] / 1e3}, **rates)


def draw_floors(*tables: pd.DataFrame, titles: tuple[str, ...], named: tuple[str, ...] = ()) -> "Figure":
    """Each operator's time over its floor, on logarithmic axes; of the `named` the longest one is marked, from
    50 µs on."""
    import matplotlib.pyplot as plt

    size = {"figsize": (5 * len(tables), 4), "sharey": True, "sharex": True, "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(1, len(tables), **size)
    ends = (1e-4, 3e4)
    for ax, table, title in zip(axes[0], tables, titles, strict=True):
        shown = table[table["floor_us"] > 0]
        limit = shown["bound"].map({"memory": "bytes", "compute": "FLOPs"})
        limit = limit.where(shown["floor_us"] >= TINY, list(COLOURS)[-1])
        for which, colour in COLOURS.items():
            rows = shown[limit == which]
            ax.plot(rows["floor_us"], rows["us"], "o", color=colour, ms=5, alpha=0.7, label=f"floor: {which}")
        ax.plot(ends, ends, "-", color="#2e8b57", lw=1, label="as fast as its floor")
        longest = (
            shown[shown["name"].isin(named) & (shown["us"] > 50)].sort_values("us").drop_duplicates("name", keep="last")
        )
        longest = longest.sort_values("us", ascending=False).groupby("floor_us", sort=False)
        longest = longest.agg(name=("name", ", ".join), us=("us", "first")).reset_index()
        for name, x, y in longest[["name", "floor_us", "us"]].itertuples(index=False):
            place = ((-12, 6), "center") if x < 0.1 else ((0, 11), "center") if x < 10 else ((-7, 1), "right")
            ax.annotate(name, (x, y), place[0], textcoords="offset points", fontsize=8, ha=place[1])
        ax.set(xscale="log", yscale="log", xlabel="floor, µs", xlim=ends, ylim=(0.4, ends[1]))
        ax.set_title(title, loc="left", fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("its kernels, µs")
    axes[0, 0].legend(fontsize=8, frameon=False, loc="upper left")
    return figure
