"""What is measured of add_relu: `python -m kernels.measure bench add_relu`."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...measure.cells import Calls, Cell, FirstCall, calls, implementations
from ...measure.judge import CALLS, AtMost, CopyShare
from .eager import add_relu, backward_bytes, forward_bytes

OP = "add_relu"
SHAPES = ((65536, 512), (262144, 1024))
DTYPES = ("float32", "bfloat16")
NAMES = ("eager", "torch.compile", "triton", "cuda")
SHOWN = {"rows": 65536, "columns": 512}
# The necessary bytes in at most 1.03 (half precision: 1.05) × the time that a copy of them takes.
TARGETS = (
    CopyShare(lambda labels: 100 / (1.03 if labels["dtype"] == "float32" else 1.05)),
    *CALLS,
    AtMost(1.1, "torch.compile", "backward"),
)


def _cell(part: str, form: str, rows: int, columns: int, dtype: str, names: tuple[str, ...], **more) -> Cell:
    torch_dtype = getattr(torch, dtype)
    moved = backward_bytes if form == "backward" else forward_bytes
    return Cell(
        OP, part, form, {"rows": rows, "columns": columns, "dtype": dtype},
        inputs=lambda draw, ids: (draw(rows, columns), draw(columns)),
        implementations=implementations(OP, (), names, in_place=form == "in place"),
        bytes=moved(rows, columns, torch_dtype),
        # Forward: the sum and the comparison. Backward: the selection and the bias gradient's sum.
        flops=2 * rows * columns,
        smaller=lambda: _cell(part, form, rows // 2, columns, dtype, names, **more) if rows > 1024 else None,
        **more,
    )


def cells(quick: bool = False) -> Iterator[Cell | Calls | FirstCall]:
    """Cells by part: large shapes against the copy, the calls' cost, the backward."""
    for shape in SHAPES[: 1 if quick else None]:
        for dtype in DTYPES:
            for form in ("functional", "in place"):
                yield _cell("bandwidth", form, *shape, dtype, NAMES)
    labels = {"rows": 64, "columns": 64, "dtype": "float32"}
    yield from calls(OP, labels, lambda draw, ids: (draw(64, 64), draw(64)), ("x", "bias"))
    for shape in ((64, 64), (1024, 512), *SHAPES[:1]):
        yield _cell("auto", "functional", *shape, "float32", ("eager", "auto"), waits=True)
    for dtype in DTYPES:
        yield _cell("backward", "backward", *SHAPES[0], dtype, NAMES)


def generated() -> tuple[Callable, tuple[Tensor, ...]]:
    """The function and the inputs whose generated source `python -m kernels.inductor` writes."""
    return add_relu, (torch.zeros(SHAPES[0]), torch.zeros(SHAPES[0][1]))
