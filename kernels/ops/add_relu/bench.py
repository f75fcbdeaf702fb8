"""What is measured of add_relu: `python -m kernels.measure bench add_relu`."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernels.measure.bench import Calls, Cell, implementations
from kernels.ops.add_relu.eager import add_relu, backward_bytes, forward_bytes

SHAPES = ((65536, 512), (262144, 1024))
DTYPES = (torch.float32, torch.bfloat16)
NAMES = ("eager", "torch.compile", "triton", "cuda")


def _inputs(rows: int, columns: int) -> Callable:
    return lambda draw: (draw(rows, columns), draw(columns))


def cells(quick: bool = False) -> Iterator[Cell | Calls]:
    """Cells by part: large shapes against the copy, the calls' cost, the backward."""
    for shape in SHAPES[: 1 if quick else None]:
        for dtype in DTYPES:
            for in_place in (False, True):
                built = implementations("add_relu", (), NAMES, in_place=in_place)
                form = "in place" if in_place else "functional"
                # FLOPs: the sum and the comparison.
                yield Cell(
                    "bandwidth", "add_relu", form, shape, dtype, (), _inputs(*shape), built,
                    forward_bytes(*shape, dtype), 2 * shape[0] * shape[1],
                )  # fmt: skip
    for form, baseline, op in (("in place", "x.add_(1)", "add_relu_"), ("functional", "x + 1", "add_relu")):
        statements = {baseline: baseline, "eager": "eager(x, bias)"}
        statements |= {backend: f"{op}(x, bias, backend='{backend}')" for backend in ("triton", "cuda")}
        shape = (64, 64)
        yield Calls(
            "add_relu", form, shape, torch.float32, (), _inputs(*shape), ("x", "bias"), baseline, statements
        )
    shape = SHAPES[0]
    for dtype in DTYPES:
        # FLOPs: the selection and the bias gradient's sum.
        yield Cell(
            "backward", "add_relu", "backward", shape, dtype, (), _inputs(*shape),
            implementations("add_relu", (), NAMES), backward_bytes(*shape, dtype), 2 * shape[0] * shape[1],
        )  # fmt: skip


def generated() -> tuple[Callable, tuple[Tensor, ...]]:
    """The function and the inputs whose generated source `python -m kernels.inductor` writes."""
    return add_relu, (torch.zeros(SHAPES[0]), torch.zeros(SHAPES[0][1]))
