"""What is measured of add_mul_activation: `python -m kernels.measure bench add_mul_activation`."""

import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernels.measure.bench import Calls, Cell, implementations
from kernels.ops.add_mul_activation.eager import FUNCTIONS, add_mul_activation, backward_bytes, forward_bytes

OP = "add_mul_activation"
MULTIPLIER = 0.5
LARGE = ((65536, 512), (262144, 1024))
DTYPES = (torch.float32, torch.bfloat16)
GRID_ROWS = tuple(4**i for i in range(1, 10))
GRID_COLUMNS = (4, 8, 64, 512, 1023, 1024, 1025, 4097)
GRID_BYTES = 2**31  # of one tensor


def _inputs(rows: int, columns: int) -> Callable:
    return lambda draw: (draw(rows, columns), draw(columns), draw(rows, columns))


def _off_the_kink(rows: int, columns: int) -> Callable:
    """Inputs whose z is not near 0, where relu's derivative jumps: rounding would decide which side of it z is on."""

    def inputs(draw: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        x, bias, y = _inputs(rows, columns)(draw)
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


def _as_generated() -> Callable:
    from kernels.ops.add_mul_activation.triton_kernel import launch_as_generated

    def as_generated(x: Tensor, bias: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        launch_as_generated(x, bias, y, out)
        return out

    return as_generated


def _forward(part: str, shape: tuple[int, int], dtype: torch.dtype, activation: str, built: dict, form: str) -> Cell:
    # FLOPs: the product, two sums, and the activation counted as one.
    return Cell(
        part, OP, form, shape, dtype, (MULTIPLIER, activation), _inputs(*shape), built,
        forward_bytes(*shape, dtype), (3 + (activation != "identity")) * shape[0] * shape[1],
    )  # fmt: skip


def cells(quick: bool = False) -> Iterator[Cell | Calls]:
    """Cells by part: large shapes against the copy, a grid against the peers, the calls' cost, the backward."""
    activations = ("sigmoid",) if quick else tuple(FUNCTIONS)
    for shape in LARGE[: 1 if quick else None]:
        for dtype in DTYPES:
            for activation in activations:
                for form in ("functional", "in place"):
                    in_place = form == "in place"
                    # A compilation takes a second: in place for one activation.
                    names = ["torch.compile"] if not in_place or activation == "sigmoid" else []
                    names = ["eager", *names, "triton", "cuda"]
                    built = implementations(OP, (MULTIPLIER, activation), names, in_place=in_place)
                    yield _forward("bandwidth", shape, dtype, activation, built, form)

    sigmoid = (MULTIPLIER, "sigmoid")
    for rows in (4, 1024, 65536) if quick else GRID_ROWS:
        for columns in (512, 1023) if quick else GRID_COLUMNS:
            if rows * columns * torch.float32.itemsize <= GRID_BYTES:
                built = implementations(OP, sigmoid, ("eager", "torch.compile"))
                built |= {"jit": _jit, "as generated": _as_generated}
                built |= implementations(OP, sigmoid, ("triton", "cuda"))
                yield _forward("grid", (rows, columns), torch.float32, "sigmoid", built, "functional")

    for shape in () if quick else ((128, 512), LARGE[0]):
        built = implementations(OP, sigmoid, ("torch.compile", "max-autotune", "triton", "cuda"))
        yield _forward("max-autotune", shape, torch.float32, "sigmoid", built, "functional")

    for form, baseline, op in (("in place", "x.add_(1)", f"{OP}_"), ("functional", "x + 1", OP)):
        arguments = f"x, bias, y, {MULTIPLIER}, 'sigmoid'"
        statements = {baseline: baseline, "eager": f"eager({arguments})"}
        statements |= {backend: f"{op}({arguments}, backend='{backend}')" for backend in ("triton", "cuda")}
        yield Calls(
            OP, form, (64, 64), torch.float32, sigmoid, _inputs(64, 64), ("x", "bias", "y"), baseline, statements
        )

    shape = LARGE[0]
    for dtype in DTYPES:
        for activation in ("sigmoid",) if quick else ("sigmoid", "relu", "gelu"):
            # FLOPs: the derivative counted as one, its product, multiplier · grad_x, the bias gradient's sum; gelu's
            # input is computed again.
            flops = 4 + 3 * (activation == "gelu")
            options = (MULTIPLIER, activation)
            yield Cell(
                "backward", OP, "backward", shape, dtype, options,
                _off_the_kink(*shape) if activation == "relu" else _inputs(*shape),
                implementations(OP, options, ("eager", "torch.compile", "triton", "cuda")),
                backward_bytes(*shape, dtype, activation), flops * shape[0] * shape[1],
            )  # fmt: skip


def generated() -> tuple[Callable, tuple[Tensor, ...]]:
    """The function and the inputs whose generated source `python -m kernels.inductor` writes."""

    def add_mul_sigmoid(x: Tensor, bias: Tensor, y: Tensor) -> Tensor:
        return add_mul_activation(x, bias, y, MULTIPLIER, "sigmoid")

    x, bias = torch.zeros(LARGE[0]), torch.zeros(LARGE[0][1])
    return add_mul_sigmoid, (x, bias, x.clone())
