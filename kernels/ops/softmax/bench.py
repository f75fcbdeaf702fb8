"""What is measured of softmax: `python -m kernels.measure bench softmax`."""

from collections.abc import Iterator

import torch

from ...measure.cells import Calls, Cell, FirstCall, calls, implementations
from ...measure.judge import CallCost, CopyShare, FirstCallWithin, NeverSlower
from .eager import backward_bytes, forward_bytes

OP = "softmax"
SHAPES = ((65536, 512), (8192, 8192))
# Every way of computing, at its edges: many short rows, of whole 16 bytes and not; rows that a warp, a block, several
# blocks take.
GRID = (
    (1000000, 1), (1000000, 4), (1000000, 7), (1000000, 8), (262144, 33), (262144, 128), (65536, 500), (65536, 1023),
    (128, 512), (4096, 4096), (2048, 16384), (2048, 20000), (1024, 32768), (512, 50257), (512, 131072),
    (128, 50257), (8, 131072), (1, 1000000),
)
DTYPES = ("float32", "bfloat16")
NAMES = ("eager", "torch.compile", "triton", "cuda")
SHOWN = {"rows": 65536, "columns": 512}


def _share(labels) -> float:
    """At 65536×512 bfloat16, which takes 31 µs, the launch's ramp of some 2 µs counts."""
    return 92.0 if labels["dtype"] == "bfloat16" and labels["columns"] == 512 else 95.0


TARGETS = (
    CopyShare(_share),
    NeverSlower("torch.compile"),
    NeverSlower("torch.compile", part="grid"),
    NeverSlower("torch.compile", part="backward"),
    # Eager's softmax is one operator, so a recorded gradient costs what eager's costs: there is no chain to save.
    CallCost(of_eager=1.1),
    FirstCallWithin(),
    NeverSlower("eager", ("auto",), "auto"),
)


def _cell(part: str, form: str, rows: int, columns: int, dtype: str, names: tuple[str, ...], **more) -> Cell:
    moved = backward_bytes if form == "backward" else forward_bytes
    return Cell(
        OP, part, form, {"rows": rows, "columns": columns, "dtype": dtype},
        inputs=lambda draw, ids: (draw(rows, columns),),
        implementations=implementations(OP, (), names, in_place=form == "in place"),
        bytes=moved(rows, columns, getattr(torch, dtype)),
        # Forward: maximum, difference, exponential, sum, product. Backward: product, sum, difference, product.
        flops=(4 if form == "backward" else 5) * rows * columns,
        smaller=lambda: _cell(part, form, rows // 2, columns, dtype, names, **more) if rows > 1024 else None,
        **more,
    )


def cells(quick: bool = False) -> Iterator[Cell | Calls | FirstCall]:
    """Cells by part: large shapes against the copy, every width, the calls' cost, the backward."""
    for shape in SHAPES[: 1 if quick else None]:
        for dtype in DTYPES:
            for form in ("functional", "in place"):
                yield _cell("bandwidth", form, *shape, dtype, NAMES)
            yield _cell("backward", "backward", *shape, dtype, NAMES)
    for shape in () if quick else GRID:
        for dtype in DTYPES:
            yield _cell("grid", "functional", *shape, dtype, NAMES)
    labels = {"rows": 64, "columns": 64, "dtype": "float32"}
    yield from calls(OP, labels, lambda draw, ids: (draw(64, 64),), ("x",))
    for shape in ((64, 64), (1024, 512), *SHAPES[:1], *(() if quick else GRID)):
        yield _cell("auto", "functional", *shape, "float32", ("eager", "auto"), waits=True)
