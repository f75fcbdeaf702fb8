"""What is measured of add_mul_activation: `python -m kernels.measure bench add_mul_activation`."""

import warnings
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from ...measure.cells import Calls, Cell, FirstCall, calls, implementations
from ...measure.judge import CALLS, AtMost, CopyShare, NearTheFastest
from .eager import FUNCTIONS, add_mul_activation, backward_bytes, forward_bytes

OP = "add_mul_activation"
MULTIPLIER = 0.5
LARGE = ((65536, 512), (262144, 1024))
DTYPES = ("float32", "bfloat16")
GRID_ROWS = (4, 64, 1024, 16384, 65536, 262144)
GRID_COLUMNS = (4, 64, 512, 1023, 1024, 1025, 4097)
GRID_BYTES = 2**31  # of one tensor
NAMES = ("eager", "torch.compile", "triton", "cuda")
SHOWN = {"rows": 65536, "columns": 512, "activation": "sigmoid"}
# The necessary bytes in at most 1.03 (half precision: 1.05) × the time that a copy of them takes.
TARGETS = (
    CopyShare(lambda labels: 100 / (1.03 if labels["dtype"] == "float32" else 1.05)),
    NearTheFastest("grid"),
    *CALLS,
    AtMost(1.1, "torch.compile", "backward"),
)


def _inputs(rows: int, columns: int) -> Callable:
    return lambda draw, ids: (draw(rows, columns), draw(columns), draw(rows, columns))


def _off_the_kink(rows: int, columns: int) -> Callable:
    """Inputs whose z is not near 0, where relu's derivative jumps: rounding would decide which side of it z is on."""

    def inputs(draw: Callable[..., Tensor], ids: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        x, bias, y = _inputs(rows, columns)(draw, ids)
        z = add_mul_activation(x, bias, y, MULTIPLIER, "identity")
        return x + torch.where(z > 0, 0.5, -0.5).to(x.dtype), bias, y

    return inputs


def _jit() -> Callable:
    # A new function each time: a scripted one keeps the shapes that it has seen. TorchScript knows neither the
    # reference's table of activations nor its keyword arguments.
    def formula(x: Tensor, bias: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(x + 0.5 * y + bias)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(formula)


def _built(activation: str, form: str, names: tuple[str, ...]) -> dict[str, Callable]:
    usual = implementations(
        OP, (MULTIPLIER, activation), [name for name in names if name != "jit"], in_place=form == "in place"
    )
    return {name: _jit if name == "jit" else usual[name] for name in names}


def cell(
    part: str,
    form: str,
    rows: int,
    columns: int,
    dtype: str = "float32",
    activation: str = "sigmoid",
    names: tuple[str, ...] = NAMES,
    built: Mapping[str, Callable] | None = None,
    **more,
) -> Cell:
    """A cell of the op; built: its implementations, in place of those that `names` names."""
    smaller = rows // 2, columns, dtype, activation, names, built
    if form == "backward":
        # The derivative counted as one, its product, multiplier · grad_x, the bias gradient's sum; gelu's input is
        # computed again.
        flops = 4 + 3 * (activation == "gelu")
        moved = backward_bytes(rows, columns, getattr(torch, dtype), activation)
    else:
        # The product, two sums, and the activation counted as one.
        flops = 3 + (activation != "identity")
        moved = forward_bytes(rows, columns, getattr(torch, dtype))
    inputs = _off_the_kink if form == "backward" and activation == "relu" else _inputs
    return Cell(
        OP, part, form, {"rows": rows, "columns": columns, "dtype": dtype, "activation": activation},
        inputs=inputs(rows, columns),
        implementations=built or _built(activation, form, names),
        bytes=moved, flops=flops * rows * columns,
        options=(MULTIPLIER, activation),
        smaller=lambda: cell(part, form, *smaller, **more) if rows > 1024 else None,
        **more,
    )


def cells(quick: bool = False) -> Iterator[Cell | Calls | FirstCall]:
    """Cells by part: large shapes against the copy, a grid against the peers and of auto, the calls' cost, the
    backward. A compilation takes a second, so that what the activations differ in is measured in one shape."""
    for activation in ("sigmoid",) if quick else sorted(FUNCTIONS, key=lambda name: name != "sigmoid"):
        for dtype in DTYPES:
            yield cell("bandwidth", "functional", *LARGE[0], dtype, activation)
    for dtype in DTYPES:
        yield cell("bandwidth", "in place", *LARGE[0], dtype)
        if not quick:
            yield cell("bandwidth", "functional", *LARGE[1], dtype)
            yield cell("bandwidth", "in place", *LARGE[1], dtype)

    grid = [
        (rows, columns)
        for rows in ((4, 1024, 65536) if quick else GRID_ROWS)
        for columns in ((512, 1023) if quick else GRID_COLUMNS)
        if rows * columns * torch.float32.itemsize <= GRID_BYTES
    ]
    for shape in grid:
        names = ("eager", "torch.compile", "jit", "triton", "cuda")
        yield cell("grid", "functional", *shape, names=names)
    for shape in grid:
        yield cell("auto", "functional", *shape, names=("eager", "auto"), waits=True)

    for shape in () if quick else ((128, 512), LARGE[0]):
        yield cell("max-autotune", "functional", *shape, names=("torch.compile", "max-autotune", "triton", "cuda"))

    labels = {"rows": 64, "columns": 64, "dtype": "float32", "activation": "sigmoid"}
    yield from calls(OP, labels, _inputs(64, 64), ("x", "bias", "y"), (MULTIPLIER, "sigmoid"))

    for dtype in DTYPES:
        for activation in ("sigmoid",) if quick else ("sigmoid", "relu", "gelu"):
            yield cell("backward", "backward", *LARGE[0], dtype, activation)


def generated() -> tuple[Callable, tuple[Tensor, ...]]:
    """The function and the inputs whose generated source `python -m kernels.inductor` writes."""

    def add_mul_sigmoid(x: Tensor, bias: Tensor, y: Tensor) -> Tensor:
        return add_mul_activation(x, bias, y, MULTIPLIER, "sigmoid")

    x, bias = torch.zeros(LARGE[0]), torch.zeros(LARGE[0][1])
    return add_mul_sigmoid, (x, bias, x.clone())
