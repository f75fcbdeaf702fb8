"""The fused update step by step, for the reader: the walk over sorted occurrences and its segments, as pictures; an
update that is repeated as a captured graph repeats it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def chunk_of(count: int, columns: int) -> int:
    """Of so many sorted occurrences how many a group of the CUDA kernel walks: chunk_of of kernel.cuh."""
    chunk, enough = 4, 1 << 17 if columns < 64 else 1 << 16
    while chunk < 32 and count // chunk > enough:
        chunk *= 2
    return chunk


def draw_walk(rows: Sequence[int]) -> Figure:
    """Occurrences as they come, as they are sorted, and the rows that are updated: each row in a colour of its own."""
    import matplotlib.pyplot as plt

    sorted_ = sorted(range(len(rows)), key=lambda n: (rows[n], n))
    distinct = sorted(set(rows))
    colour = {row: f"C{i}" for i, row in enumerate(distinct)}
    figure, ax = plt.subplots(figsize=(10, 3.6), layout="constrained")

    def box(x: float, y: float, row: int, text: str, width: float = 0.9) -> None:
        ax.add_patch(plt.Rectangle((x, y), width, 0.5, color=colour[row], alpha=0.35))
        ax.text(x + width / 2, y + 0.25, text, ha="center", va="center", size=9)

    for n, row in enumerate(rows):
        box(n, 2.6, row, f"row {row}")
        ax.text(n + 0.45, 3.2, f"position {n}", ha="center", size=7)
    for place, n in enumerate(sorted_):
        box(place, 1.4, rows[n], f"{rows[n]}, {n}")
        ax.plot([n + 0.45, place + 0.45], [2.6, 1.9], color=colour[rows[n]], linewidth=1)
    for row in distinct:
        places = [place for place, n in enumerate(sorted_) if rows[n] == row]
        terms = " + ".join(f"grad {sorted_[place]}" for place in places)
        box(places[0], 0.2, row, f"row {row}:\n{terms}", len(places) - 0.1)
        ax.plot([places[0] + 0.05, places[-1] + 0.85], [1.3, 1.3], color=colour[row], linewidth=3)
    for y, label in ((2.85, "as they come"), (1.65, "sorted:\nrow, position"), (0.45, "one update\na row")):
        ax.text(-0.15, y, label, ha="right", va="center", size=9)
    ax.set(xlim=(-1.6, len(rows)), ylim=(0, 3.4))
    ax.axis("off")
    return figure


def sums_in_orders(count: int, orders: int) -> set[float]:
    """The float32 sums of the same random numbers, added one after the other in so many random orders."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(count).astype(np.float32)
    return {float(rng.permutation(values).cumsum(dtype=np.float32)[-1]) for _ in range(orders)}


def draw_segments(segments: Mapping[str, Sequence[int]], ids: int, columns: int = 16) -> Figure:
    """segments: for each table the lengths of its segments, in a batch of `ids` ids a table. The longest and the mean
    of each table, on a logarithmic scale, and how long the CUDA kernel's chunks are for rows of `columns` numbers."""
    import matplotlib.pyplot as plt

    chunk = chunk_of(ids * len(segments), columns)

    figure, ax = plt.subplots(figsize=(10, 3.2), layout="constrained")
    names = list(segments)
    ax.bar(names, [max(lengths) for lengths in segments.values()], color="lightskyblue", label="longest segment")
    ax.plot(names, [ids / len(lengths) for lengths in segments.values()], "k_", markersize=14, label="mean segment")
    ax.axhline(chunk, color="C1", linestyle="--", label=f"a chunk of the CUDA kernel: {chunk}")
    ax.set(yscale="log", ylabel="occurrences of a row")
    ax.tick_params(axis="x", labelsize=7)
    ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def captured(update: Callable, *arguments) -> Callable[[], object]:
    """On a GPU a CUDA graph of update(*arguments), to be replayed; on a CPU, which has none, a call with these.

    Both see a tensor as it then is, and a number as it was. A capture computes nothing; before it the update runs once,
    on either device, which compiles what there is to compile.
    """
    call = functools.partial(update, *arguments)
    device = next(value.device for value in arguments if isinstance(value, torch.Tensor))
    if device.type != "cuda":
        call()
        return call
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay
