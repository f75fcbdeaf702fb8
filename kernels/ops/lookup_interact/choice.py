"""Whether a warp holds a row's vectors, and whether one kernel is then faster than look-ups and interaction in two: by
the times that were measured of both."""

from __future__ import annotations

import functools
import itertools

import torch
from torch.compiler import is_compiling

from ... import runtime
from ...device.launch import architecture
from ...tracing import constant_in_a_graph
from ..embedding_bags.choice import cuda_runs

MOST_BYTES = 512  # of a vector: four rows of 32 of them fit into a block's shared memory from sm_80 on
# On an H200, 26 features, one id each, µs of two kernels and of one, by (whether tensor cores multiply, whether there
# are gradients), width and rows: of tf32, and behind it of bfloat16 where that was measured. With gradients: forward
# and vectors' gradients together, which one kernel looks up again and two have kept (lookup_interact.json in
# traces/results/h200); of width 128 a training step of these rows (choices.json, and of 65,536 step_memory.json).
MEASURED = {
    (True, False): {
        16: {2048: ((8.824, 4.783), (6.902, 4.027)), 65536: ((122.1, 57.17), (66.29, 37.52))},
        64: {2048: ((14.56, 7.409),), 65536: ((317.6, 167.7),)},
        128: {2048: ((24.16, 14.28),), 65536: ((601.8, 420.7),)},
    },
    (True, True): {
        16: {2048: ((16.97, 9.534), (10.81, 8.499)), 65536: ((216.9, 141.9), (133.1, 105.4))},
        128: {2048: ((613.4, 594.5),), 16384: ((1961.7, 1920.1),), 65536: ((6880.0, 6780.0), (5170.0, 4090.0))},
    },
    (False, False): {16: {2048: ((8.811, 5.928),), 65536: ((122.2, 91.12),)}},
    (False, True): {16: {2048: ((16.95, 19.77),), 65536: ((217.0, 288.3),)}},
}
# The same of kinds whose vectors meet no others, by (kind, whether there are gradients): float32, and bfloat16. What is
# not here stays in parts; `bench lookup_interact` measures both ways.
MEASURED_BY_COLUMNS = {
    ("fm", False): {
        16: {2048: ((8.397, 3.933), (7.426, 4.076)), 65536: ((140.4, 49.52), (117.8, 51.58))},
        128: {2048: ((37.65, 11.21),), 65536: ((1096.0, 172.3),)},
    },
    ("fm", True): {
        16: {2048: ((14.74, 9.23), (13.9, 8.566)), 65536: ((279.3, 142.0), (224.0, 138.4))},
        128: {2048: ((73.13, 34.86),), 65536: ((2151.0, 687.5),)},
    },
    ("flat", False): {
        16: {2048: ((6.771, 4.449), (5.223, 3.639)), 65536: ((106.1, 67.56), (60.69, 44.68))},
        128: {2048: ((26.52, 16.27),), 65536: ((756.4, 363.8),)},
    },
    ("flat", True): {
        16: {2048: ((11.52, 9.862), (8.965, 6.246)), 65536: ((163.6, 141.6), (91.67, 77.07))},
        128: {2048: ((43.02, 37.29),), 65536: ((1185.0, 829.0),)},
    },
}


def fits(
    features: int, columns: int, dtype: torch.dtype, precision: str, device: torch.device, kind: str = "dot"
) -> bool:
    """Whether the CUDA kernel is for such calls. Of dot, whether a warp holds the vectors of a row: else plain kernels
    run, which are slow."""
    if kind != "dot":
        return columns > 0 and dtype.itemsize <= 4
    size, products = dtype.itemsize, _by_tensor_cores(dtype, precision, device)
    is_held = 0 < features <= (31 if products else 27) and columns > 0 and columns * size <= MOST_BYTES
    return is_held and columns * size % 16 == 0 and (size == 4 or (size == 2 and products))


def why_in_two(
    rows: int | torch.SymInt, features: int, columns: int, dtype: torch.dtype, precision: str, bags: bool, trains: bool,
    device: torch.device, kind: str = "dot",
) -> str:
    """Why look-ups and interaction are two kernels of that many rows; "" where one is faster. bags: whether ids are
    bags; trains: whether there are gradients: then forward and gradients count together.

    MEASURED decides. What was not measured stays in two: fewer rows than any, a number of rows that is open while
    torch.compile or torch.export traces, widths beyond those that were measured, vectors that are no whole 16 bytes, of
    which a lane takes a number at a time, and gradients of bags, whose ids are all looked up again. Between two numbers
    of rows, or two widths, it is as they are. Not measured either, but fewer bytes: a forward of bags, fewer features,
    and float32 tables under torch.autocast, which has two kernels write the vectors twice, as float32 and as halves.
    """
    least = least_rows(features, columns, dtype, precision, bags, trains, device, kind)
    if isinstance(least, str):
        return least
    is_many = rows >= least
    if is_compiling() or isinstance(rows, torch.SymInt):
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        is_many = statically_known_true(is_many)
    return "" if is_many else f"one kernel of look-ups and interaction is for {least:,} rows and more"


@constant_in_a_graph
def least_rows(
    features: int, columns: int, dtype: torch.dtype, precision: str, bags: bool, trains: bool, device: torch.device,
    kind: str = "dot",
) -> int | str:
    """The fewest rows from which on one kernel is faster than two; or why it is for none."""
    if device.type == "cuda" and not cuda_runs():  # an eager step asks: why_not searches PATH
        return f"its kernel does not run here: {runtime.why_not('cuda', 'cuda')}"
    if not fits(features, columns, dtype, precision, device, kind):
        return f"a warp does not hold {features} vectors of {columns} numbers, of {dtype}"
    products = _by_tensor_cores(dtype, precision, device)
    is_measured = columns * dtype.itemsize % 16 == 0 and not (bags and trains)
    if is_measured and (least := measured_least(columns, products, trains, kind)):
        return least
    of = "bags of vectors" if bags else "vectors"
    how = ("by tensor cores" if products else "in full float32") if kind == "dot" else f"({kind})"
    how = f"{columns} numbers {how}{', with gradients,' * trains}"
    return f"one kernel for {of} of {how} is not known to be faster than two"


@functools.cache
def measured_least(columns: int, products: bool, trains: bool, kind: str = "dot") -> int:
    """The fewest rows from which on one kernel was always faster when it was measured, of the next measured widths on
    both sides; 0: of none."""
    of_widths = MEASURED[products, trains] if kind == "dot" else MEASURED_BY_COLUMNS.get((kind, trains), {})
    around = [max((width for width in of_widths if width <= columns), default=0),
              min((width for width in of_widths if width >= columns), default=0)]  # fmt: skip
    least = [0 if not width else _least(of_widths[width]) for width in around]
    return max(least) if all(least) else 0


def _least(of_rows: dict[int, tuple[tuple[float, float], ...]]) -> int:
    """The fewest rows from which on all times of one kernel are the shorter ones; 0: of none."""
    from_most = sorted(of_rows, reverse=True)
    faster = itertools.takewhile(lambda rows: all(one < two for two, one in of_rows[rows]), from_most)
    return min(faster, default=0)


def _by_tensor_cores(dtype: torch.dtype, precision: str, device: torch.device) -> bool:
    return architecture(device) >= 80 and (dtype.itemsize == 2 or precision == "tf32")
