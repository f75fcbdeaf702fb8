"""Whether one kernel computes a model, and whether it is faster than the model's parts."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import torch

from ...device.launch import architecture, cdiv, multiprocessors, shared_memory
from .cluster import ROWS as CLUSTER_ROWS
from .cluster import Clusters, resident_clusters
from .cuda_launch import design_of, design_that_keeps
from .pair import ROWS as PAIR_ROWS
from .pair import Pairs, resident_pairs
from .shape import Shape
from .tile import Tiles

MOST_WEIGHTS, MOST_SHARED_WEIGHTS = 4 << 20, 8 << 20  # bytes of all layers, by tiles and by clusters that share them
MANY = 1 << 31  # rows, where their number is not known
FEW = 240  # rows, for which clusters are on sm_90
# µs of a captured prediction on an H200, by the design, the bytes of weights that it reads a tile, and rows: in parts,
# with look-ups within the interaction's kernel, and in one kernel. choices.json in traces/results/h200 has two
# predictions a graph: `main`, MLPerf's model and `small`, in tf32 and bfloat16.
CAPTURED = {
    "Pairs": {
        1_054_400: {2048: (32.81, 30.04), 16384: (74.74, 145.3), 65536: (245.8, 537)},
        1_977_728: {2048: (47.47, 32.41), 16384: (128.3, 181.2), 65536: (458.3, 686.8)},
    },
    "Tiles": {
        32_960: {2048: (15.45, 25.05), 16384: (31.43, 98.25), 65536: (86.19, 342.1)},
        55_808: {2048: (15.73, 24.25), 16384: (48.97, 102.2), 65536: (153.6, 364.8)},
        4_865_312: {2048: (146, 100.1), 16384: (323.4, 644), 65536: (1187, 2426)},
        9_518_656: {2048: (172.9, 255), 16384: (466.1, 1812), 65536: (1717, 7130)},
    },
}
# µs of a captured step of `main` in tf32 by SGD on an H200, by the tiles that a pair of multiprocessors takes: with a
# forward in parts, and with dlrm_forward_kept; of 2,048, 512 and 241 rows (a tile takes as long), 16,384 and 65,536. In
# parts look-ups are within the interaction's kernel, where 2,048 rows had a time of it (choices.json).
KEPT = {1: ((176.3, 158.5), (123.7, 101.3), (123.4, 106.8)), 8: ((780.0, 831.5),), 32: ((2913.0, 3184.4),)}


def why_in_parts(design: Shape | Tiles, rows: int) -> str:
    """Why so many rows of a model that fits into one kernel are faster in parts on a GPU that waits for no host; ""
    where they are not.

    CAPTURED decides, of the model of this design whose weights are nearest: at the next number of rows that was
    measured, and at the one before. Where none was before, as of FEW rows and of designs without times, bytes of
    weights decide: each tile of rows reads all weights through one multiprocessor, so that a model with many takes long
    even for one row. On an H200, µs by replay, torch.compile / the backend's parts / one kernel, by tiles:

        rows                   1               128             2,048            16,384            65,536
        main        1.9 MB     41 / 55 / 38    53 / – / 39     110 / – / 46     537 / – / 251     1982 / – / 995
        MLPerf bf16 4.9 MB     49 / 60 / 78    60 / 87 / 78    161 / – / 93     867 / 616 / 621   2916 / 1913 / 2378
        MLPerf tf32 9.9 MB     47 / 56 / 134   68 / 72 / 135   195 / 167 / 257  980 / 738 / 1827  3811 / 2730 / 7651

    Clusters take 30 and 36 µs for 1 and 128 rows of MLPerf's in bfloat16, the parts 46 and 45; in tf32 51 and 56 for 1
    and 120 rows, the parts 47 and, of 128, 65.

    Outside of a graph one kernel may be faster yet, for it is one launch. But a call there may be the one before a
    capture, in which no kernel can be loaded: both go the same way.
    """
    if not isinstance(design, Tiles):
        return ""
    weights = design.fragments * design.dtype.itemsize
    of_design = CAPTURED.get(type(design).__name__) if rows > FEW else None
    times = of_design[min(of_design, key=lambda bytes_: abs(math.log(bytes_ / weights)))] if of_design else {}
    next_one = min((count for count in times if count >= rows), default=max(times, default=0))
    before = max((count for count in times if count <= rows), default=0)
    for count in filter(None, (next_one, before)):
        parts, one = times[count]
        if one >= parts:
            took = f"{count:,} rows took {parts:,} µs in parts on an H200, and {one:,} in one kernel"
            return f"its parts are faster: {took}, of the measured model whose weights are nearest"
    most = MOST_SHARED_WEIGHTS if isinstance(design, Clusters) else MOST_WEIGHTS
    if before or weights <= most:
        return ""
    return f"each tile of rows reads {weights:,} bytes of weights: its parts are faster"


def most_rows(why: Callable[[int], str], device: torch.device) -> float:
    """The rows up to which any number of them is one kernel, where why(rows) says why a number is not; math.inf where
    none is in parts."""
    of_clusters = [rows * resident_clusters(multiprocessors(device)) for rows in CLUSTER_ROWS]
    measured = [rows for of_design in CAPTURED.values() for times in of_design.values() for rows in times]
    # Behind these another design begins, or other times count.
    return next((rows for rows in sorted({0, FEW, *of_clusters, *measured}) if why(rows + 1)), math.inf)


@functools.lru_cache(maxsize=1024)
def design_for(
    bottom: tuple[torch.Size, ...], top: tuple[torch.Size, ...], features: int, bags: bool, dtype: torch.dtype,
    precision: str, device: torch.device, rows: int = MANY,
) -> Shape | Tiles | str:
    """`design_of` a model with weights of these shapes, and so many rows. Each call asks, so it is kept."""
    widths = [(weights[0][1], *(shape[0] for shape in weights)) for weights in (bottom, top)]
    shape = Shape(*widths, features, bags="closed" if bags else "")
    gpu = architecture(device), shared_memory(device)
    return design_of(shape, dtype, precision, *gpu, rows, multiprocessors(device))


@functools.lru_cache(maxsize=1024)
def why_not_kept(bottom_widths: str, top_widths: str, features: int, device: torch.device) -> str:
    """Why no kernel keeps the values of a model of such widths for a backward; "" where one does."""
    shape = Shape(*(tuple(map(int, widths.split("-"))) for widths in (bottom_widths, top_widths)), features)
    design = design_that_keeps(shape, architecture(device), shared_memory(device), multiprocessors(device))
    return "" if isinstance(design, Pairs) else design


@functools.lru_cache(maxsize=1024)
def is_faster_kept(bottom_widths: str, top_widths: str, features: int, rows: int, device: torch.device) -> bool:
    """Whether a training step's forward is faster by dlrm_forward_kept than by its parts: there is such a kernel, and
    KEPT has it faster for so many tiles a pair, and for every smaller number that was measured. For each tile a pair
    reads all its weights once more. Other models than `main` were not measured."""
    if why_not_kept(bottom_widths, top_widths, features, device):
        return False
    tiles = cdiv(rows, PAIR_ROWS)
    return 0 < tiles <= _most_tiles_kept() * resident_pairs(multiprocessors(device))


def _most_tiles_kept() -> int:
    faster = itertools.takewhile(lambda tiles: all(one < parts for parts, one in KEPT[tiles]), sorted(KEPT))
    return max(faster, default=0)


def fits(*model) -> bool:
    """Whether there is a kernel for a model of any number of rows, which `design_for` describes."""
    return not isinstance(design_for(*model), str)


@functools.lru_cache(maxsize=1024)
def is_faster(*model) -> bool:
    """Whether there is one, which is faster than the parts, of the number of rows that stands behind the model."""
    design, rows = design_for(*model), model[-1]
    return not isinstance(design, str) and not why_in_parts(design, rows)
