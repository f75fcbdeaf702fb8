"""What each operator of a recorded step had to do on the GPU, and the least time in which that can be done.

    floor of an operator = max(bytes / bandwidth, FLOPs / peak)
    floor of a step      = the sum of its operators' floors, since they run one after another

Bytes: what it reads and writes, each tensor once, by the shapes that the trace recorded. What still lies in the L2
cache comes faster than the memory's bandwidth allows, so a small operator can beat its floor.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch

from lessons.shared.picture import BLUE, GREEN, ORANGE, open_panels
from lessons.shared.records import FLOAT32, yardstick
from model.config import DLRMConfig
from model.dlrm import DLRM
from model.profiling.phases import work_by_phase
from model.profiling.tables import TRACES
from model.profiling.trace import Trace, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TINY = 1.0  # µs: a floor below it is less than a kernel's own beginning and end
NAMED = "addmm", "mm", "mul", "sum", "_fused_sgd_", "embedding_dense_backward", "_index_put_impl_"
_BYTES = {"double": 8, "long int": 8, "short": 2, "bool": 1, "c10::Half": 2, "c10::BFloat16": 2}  # others: 4
_PRODUCTS = ("addmm", "mm", "bmm")


def operators(trace: Trace | str | Path, step: int = 1, parameters: int = 0) -> pd.DataFrame:
    """A row per operator that launches something in the step, in their order on the GPU: name, us (its kernels'
    durations), bytes, FLOPs (of matrix products).

    parameters: of the model, which the optimizer reads and writes: no trace has the shapes of its lists.
    """
    trace = read(trace)
    work = work_by_phase(trace, step)
    called = trace.of("cpu_op").drop_duplicates("external").set_index("external")
    rows = []
    for external, kernels in work.groupby("external", sort=False):
        operator = called.loc[external]
        name = operator["name"].removeprefix("aten::")
        moved, flops = needed(name, operator["shapes"] or [], operator["types"] or [], parameters)
        rows.append((name, kernels["dur"].sum(), moved, flops))
    return pd.DataFrame(rows, columns=["name", "us", "bytes", "FLOPs"])


def recorded_operators(name: str, traces: Path = TRACES) -> pd.DataFrame:
    """operators() of a recorded step on an H200, its model's parameters counted."""
    config = json.loads((traces / name / "run.json").read_text())["config"]["model"]
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in DLRM(DLRMConfig(**config)).parameters())
    return operators(traces / name, parameters=parameters)


def floors(table: pd.DataFrame, peak: float = FLOAT32, bandwidth: float = 1e12 * yardstick()) -> pd.DataFrame:
    """operators() with bound ("compute" | "memory": by the intensity) and floor_us. peak: FLOPs a second; bandwidth:
    bytes a second."""
    intense = table["FLOPs"] > peak / bandwidth * table["bytes"]
    longer = table["FLOPs"].div(peak).where(intense, table["bytes"] / bandwidth)
    return table.assign(bound=intense.map({True: "compute", False: "memory"}), floor_us=1e6 * longer)


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


def draw_floors(**steps: pd.DataFrame) -> Figure:
    """Each operator's time over its floor, on logarithmic axes: a panel per step, columns bound and floor_us. The names
    of those in NAMED stand at the longest call, where it takes more than 100 µs."""
    figure, axes = open_panels((5 * len(steps), 4), 1, len(steps), sharey=True, sharex=True, squeeze=False)
    ends = (1e-3, 3e4)
    for ax, (title, table) in zip(axes[0], steps.items(), strict=True):
        small = 100 * (table["floor_us"] < TINY).mean()
        for bound, colour in {"memory": ORANGE, "compute": BLUE}.items():
            rows = table[(table["bound"] == bound) & (table["floor_us"] > 0)]
            ax.plot(rows["floor_us"], rows["us"], "o", color=colour, ms=5, alpha=0.6, label=f"{bound}-bound")
        ax.plot(ends, ends, "-", color=GREEN, lw=1, label="the time is the floor")
        ax.axvspan(ends[0], TINY, color="0.93", zorder=0)
        ax.text(1.3 * ends[0], 3e3, f"{small:.0f} % of the operators:\na floor below {TINY:.0f} µs", fontsize=8)
        longest = table[table["name"].isin(NAMED) & (table["us"] > 100)].sort_values("us").groupby("name").last()
        for _, rows in longest.reset_index().sort_values("us").groupby("floor_us"):
            x, y, name = rows["floor_us"].iloc[0], rows["us"].max(), ", ".join(rows["name"][::-1])
            place, align = ((0, 8), "center") if x < 0.1 else ((6, 4), "left") if x < 10 else ((-6, 4), "right")
            ax.annotate(name, (x, y), place, textcoords="offset points", fontsize=8, ha=align)
        ax.set(xscale="log", yscale="log", xlabel="floor, µs", xlim=ends, ylim=(0.4, ends[1]))
        ax.set_title(title, loc="left", fontsize=9)
    axes[0, 0].set_ylabel("the operator's kernels, µs")
    axes[0, 1 - 2 * (len(steps) == 1)].legend(fontsize=8, frameon=False, loc="lower right")
    return figure
