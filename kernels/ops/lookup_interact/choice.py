"""Whether a warp holds a row's vectors, and whether one kernel is then faster than look-ups and interaction in two."""

from __future__ import annotations

import torch
from torch.compiler import is_compiling

from ... import runtime
from ...device.launch import architecture
from ...tracing import constant_in_a_graph

MOST_BYTES = 512  # of a vector: four rows of 32 of them fit into a block's shared memory from sm_80 on
LEAST_ROWS, LEAST_WIDE_ROWS = 2048, 65536  # of a batch, with gradients of wide vectors: fewer were not measured
LEAST_COLUMNS, MOST_COLUMNS, MOST_FULL_COLUMNS = 16, 128, 16  # of a vector, by tensor cores and in full float32


def fits(features: int, columns: int, dtype: torch.dtype, precision: str, device: torch.device) -> bool:
    """Whether a warp of the CUDA kernel holds the vectors of a row: else plain kernels run, which are slow."""
    size, products = dtype.itemsize, _by_tensor_cores(dtype, precision, device)
    is_held = 0 < features <= (31 if products else 27) and columns > 0 and columns * size <= MOST_BYTES
    return is_held and columns * size % 16 == 0 and (size == 4 or (size == 2 and products))


def why_in_two(
    rows: int | torch.SymInt, features: int, columns: int, dtype: torch.dtype, precision: str, bags: bool, trains: bool,
    device: torch.device,
) -> str:
    """Why look-ups and interaction are two kernels of that many rows; "" where one is faster. bags: whether ids are
    bags; trains: whether there are gradients: then forward and gradients count together.

    On an H200, 26 features, one id each, µs, two kernels / one (traces/results/h200/lookup_interact.json); gradients
    are those of the vectors, which one kernel looks up again, and two have kept:

                       2,048 rows                        65,536 rows
        width 16       forward        gradients          forward          gradients
        tf32            8.8 / 4.8      8.2 / 4.8         121.7 / 57.1      94.7 / 84.3
        bfloat16        6.9 / 4.0     12.7 / 4.5          65.9 / 37.3     128.2 / 67.9
        full float32    8.8 / 5.9      8.2 / 13.9        121.7 / 91.0      94.9 / 197.1
        width 128
        tf32           24.2 / 14.3                       603.3 / 418.0

    A training step of 65,536 rows of width 128 (step_memory.json beside it) takes 6.88 ms / 6.78 in tf32, and 5.17 /
    4.09 in bfloat16.

    So full float32 has one kernel where there are no gradients: with them it would take longer than two. What was not
    measured stays in two: fewer rows, with gradients of vectors wider than 16 fewer than 65,536, a number of rows that
    is open while torch.compile or torch.export traces, other widths of full float32, widths below 16 or above 128, and
    gradients of bags, whose ids are all looked up again. Not measured either, but fewer bytes: a forward of bags, fewer
    features, and float32 tables under torch.autocast, which has two kernels write the vectors twice, as float32 and as
    halves.
    """
    least = least_rows(columns, trains)
    is_many = rows >= least
    if is_compiling() or isinstance(rows, torch.SymInt):
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        is_many = statically_known_true(is_many)
    if not is_many:
        return f"one kernel of look-ups and interaction is for {least:,} rows and more"
    return _why_of_any_rows(features, columns, dtype, precision, bags, trains, device)


def least_rows(columns: int, trains: bool) -> int:
    """The fewest rows for which one kernel may be faster than two."""
    return LEAST_WIDE_ROWS if trains and columns > LEAST_COLUMNS else LEAST_ROWS


@constant_in_a_graph
def _why_of_any_rows(
    features: int, columns: int, dtype: torch.dtype, precision: str, bags: bool, trains: bool, device: torch.device
) -> str:
    if device.type == "cuda" and (reason := runtime.why_not("cuda", "cuda")):
        return f"its kernel does not run here: {reason}"
    if not fits(features, columns, dtype, precision, device):
        return f"a warp does not hold {features} vectors of {columns} numbers, of {dtype}"
    if _by_tensor_cores(dtype, precision, device):
        is_faster, products = LEAST_COLUMNS <= columns <= MOST_COLUMNS, "by tensor cores"
    else:
        is_faster, products = LEAST_COLUMNS <= columns <= MOST_FULL_COLUMNS and not trains, "in full float32"
    if is_faster and not (bags and trains):
        return ""
    of = "bags of vectors" if bags else "vectors"
    how = f"for {of} of {columns} numbers {products}{', with gradients,' if trains else ''}"
    return f"one kernel {how} is not known to be faster than two"


def _by_tensor_cores(dtype: torch.dtype, precision: str, device: torch.device) -> bool:
    return architecture(device) >= 80 and (dtype.itemsize == 2 or precision == "tf32")
