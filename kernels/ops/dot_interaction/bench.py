"""What is measured of the interaction: `python -m kernels.measure bench dot_interaction`.

26 features, as Criteo has. 65536 rows of 16 columns take 11 µs at an H200's 67 TFLOP/s in float32, and their bytes 49
at a copy's; 64 columns take 44 and 131, 128 columns 88 and 241: the bytes are the limit, in the backward too.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ... import runtime
from ...measure.cells import Calls, Cell, FirstCall, calls, implementations
from ...measure.judge import AtMost, CallCost, CopyShare, FirstCallWithin, NeverSlower
from . import eager

OP = "dot_interaction"
FEATURES = 26
ROWS = (65536, 2048)
COLUMNS = (16, 64, 128)
SHOWN = {"rows": 65536, "columns": 16}
FASTER = ("cuda",)  # of the two kernels, which "auto" is
TARGETS = (
    CopyShare(lambda labels: 85.0, who=FASTER),
    AtMost(1 / 3, part="forward", who=FASTER),
    AtMost(1 / 3, part="bandwidth", who=FASTER),
    AtMost(1 / 2, part="backward", who=FASTER),
    NeverSlower("torch.compile"),
    NeverSlower("torch.compile", part="forward"),
    NeverSlower("torch.compile", part="backward"),
    NeverSlower("torch.compile", part="few"),
    NeverSlower("triton", FASTER, "half"),
    CallCost(),
    FirstCallWithin(),
    NeverSlower("eager", ("auto",), "auto"),
)


def _peer(compiled: bool) -> Callable:
    """Eager as a model has it: the pairs' indices are a buffer, made once."""
    pairs = eager.pairs(FEATURES, runtime.device())

    def interact(dense: Tensor, sparse: Tensor) -> Tensor:
        return eager.interact(dense, sparse, pairs)

    return torch.compile(interact, dynamic=False) if compiled else interact


def _cell(part: str, form: str, rows: int, columns: int, dtype: str, names: tuple[str, ...] = (), **more) -> Cell:
    moved = eager.backward_bytes if form == "backward" else eager.forward_bytes
    built = {"eager": partial(_peer, False), "torch.compile": partial(_peer, True)}
    built |= implementations(OP, (), ("auto", "triton", "cuda"))
    names = names or ("eager", "torch.compile", "triton", "cuda")
    return Cell(
        OP, part, form, {"rows": rows, "features": FEATURES, "columns": columns, "dtype": dtype},
        inputs=lambda draw, ids: (draw(rows, columns), draw(rows, FEATURES, columns)),
        implementations={name: built[name] for name in names},
        bytes=moved(rows, FEATURES, columns, getattr(torch, dtype)),
        flops=eager.forward_flops(rows, FEATURES, columns) * (2 if form == "backward" else 1),
        smaller=lambda: _cell(part, form, rows // 2, columns, dtype, names, **more) if rows > 1024 else None,
        **more,
    )


def cells(quick: bool = False) -> Iterator[Cell | Calls | FirstCall]:
    """Cells by part: 16 columns against the copy, wider and fewer rows, few wide rows, the backward, halves, calls."""
    for rows in ROWS[: 1 if quick else None]:
        for columns in COLUMNS[: 2 if quick else None]:
            part = "bandwidth" if (rows, columns) == (ROWS[0], COLUMNS[0]) else "forward"
            yield _cell(part, "functional", rows, columns, "float32")
            yield _cell("backward", "backward", rows, columns, "float32")
    for dtype, form in itertools.product(("float32", "bfloat16"), ("functional", "backward")):
        yield _cell("few", form, 128, 128, dtype)
    for rows, columns in ((65536, 16), (2048, 16), (65536, 128), (2048, 128))[: 1 if quick else None]:
        for form in ("functional", "backward"):
            yield _cell("half", form, rows, columns, "bfloat16", ("eager", "triton", "cuda"))
    labels = {"rows": 64, "features": FEATURES, "columns": 16, "dtype": "float32"}
    inputs = lambda draw, ids: (draw(64, 16), draw(64, FEATURES, 16))  # noqa: E731
    yield from calls(OP, labels, inputs, ("dense", "sparse"), (), ("functional", "with a gradient"))
    for rows in (64, *ROWS[::-1]):
        yield _cell("auto", "functional", rows, 16, "float32", ("eager", "auto"), waits=True)
