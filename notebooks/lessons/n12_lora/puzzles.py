"""The lecture's puzzles about LoRA, in PyTorch: the layer with its epilogue, the gradients of A and B without W's, what
is left of a change, and a batch whose rows choose their adapters.

    forward     relu(x Wᵀ + bias + multiplier (x A) B), its pointwise part by one call of the epilogue
    gradients   of A and B, from that of the sum, with no tensor of W's size
    kept        wanted, arrived → the error beside what was wanted, and the projection on it
    many        x [rows, K], A [n, K, r], B [n, r, N], adapter [rows] → (x A) B by each row's own A and B
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from kernels import add_mul_activation
from kernels.check import Call, Case, Spec, Sums
from lessons.shared.puzzle import InPyTorch, Judge, Quiet, TooLarge, Waits
from lessons.shared.puzzle.in_pytorch import no_autograd

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
# A case is a place in these. in · out is far more than what a batch takes or gives.
SHAPES = [(5, 24, 20, 3), (2, 8, 12, 1), (3, 40, 12, 2)]  # rows, in, out, rank: only the output has rows · out
ADAPTERS = [(40, 24, 20, 4, 5), (12, 16, 16, 2, 3), (9, 8, 10, 2, 1)]  # and how many adapters


class _Passes(TorchDispatchMode):
    """Names the operators that run and write so many numbers, products left out."""

    def __init__(self, size: int):
        super().__init__()
        self.size, self.passes = size, []

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        given = operator(*arguments, **(named or {}))
        name = operator._schema.name.removeprefix("aten::")
        storages = {
            value.untyped_storage()._cdata for value in tree_leaves((arguments, named)) if isinstance(value, Tensor)
        }
        for made in tree_leaves(given):
            view = isinstance(made, Tensor) and made.untyped_storage()._cdata in storages and not name.endswith("_")
            if isinstance(made, Tensor) and made.numel() == self.size and name not in PRODUCTS and not view:
                self.passes.append(name)
        return given


class _Called(TorchFunctionMode):
    """Names the functions of torch that are called; what one of them does inside may differ from device to device."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, arguments=(), named=None):
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*arguments, **(named or {}))


def lora_forward(x: Tensor, W: Tensor, bias: Tensor, A: Tensor, B: Tensor, multiplier: float) -> Tensor:
    return torch.relu(x @ W.T + bias + multiplier * ((x @ A) @ B))


def _all_positive(x: Tensor, W: Tensor, bias: Tensor, A: Tensor, B: Tensor, multiplier: float) -> Tensor:
    return lora_forward(x, W, bias, A, B, abs(multiplier))


def _with_epilogue(answer, x, W, bias, A, B, multiplier: float) -> Tensor:
    return answer(x, W, bias, A, B, multiplier, _eager_epilogue)


def _eager_epilogue(x, bias, y, multiplier: float = 1.0, activation: str = "relu") -> Tensor:
    return add_mul_activation(x, bias, y, multiplier, activation, backend="eager")


def _one_epilogue(answer, x, W, bias, A, B, multiplier: float) -> None:
    """One call of the epilogue, and beside the products nothing that writes a tensor of the output's size."""
    called = []

    def epilogue(x, bias, y, multiplier=1.0, activation="relu"):
        called.append(1)
        with torch.utils._python_dispatch._disable_current_modes():
            return torch.empty_like(x)

    with _Passes(len(x) * len(W)) as seen:
        answer(x, W, bias, A, B, multiplier, epilogue)
    if seen.passes:
        raise TooLarge(f"right, but {seen.passes[0]} is a pass over the output that the epilogue is there to save")
    if len(called) != 1:
        raise TooLarge(f"right, but the epilogue was called {len(called)} times, and once is enough")


def _forward_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, depth, columns, rank = SHAPES[case.shape[0]]
    shapes = (rows, depth), (columns, depth), (columns,), (depth, rank), (rank, columns)
    tensors = tuple(case.tensor(seed, device, shape) for seed, shape in enumerate(shapes, 1))
    for multiplier in (1.5, -0.5):
        yield Call(
            f"{rows}×{depth} to {columns}, rank {rank}, multiplier {multiplier}", tensors, (multiplier,),
            hint="the epilogue computes act(x + multiplier · y + bias). Which of the two products is scaled? The bias "
            "counts once, and the activation comes last.",
        )


def _few(call: Call) -> int:
    """Twice what the batch takes or gives: less than W."""
    x, other = call.tensors[0], call.tensors[1]
    return 2 * len(x) * max(x.shape[1], len(other))


FORWARD = InPyTorch(
    Spec(
        lora_forward,
        _forward_calls,
        scale=Sums(magnitude=_all_positive),
        cases=lambda names: [Case((number, 1)) for number in range(len(SHAPES))],
    ),
    _with_epilogue,
    Quiet(
        _few,
        _one_epilogue,
        "A B, and whatever has W's size, is what the brackets avoid: x is thin after A. And scale, bias and activation "
        "belong to the epilogue.",
    ),
)


def gradients(x: Tensor, A: Tensor, B: Tensor, grad: Tensor, multiplier: float) -> tuple[Tensor, Tensor]:
    return x.T @ (multiplier * grad @ B.T), (x @ A).T @ (multiplier * grad)


def _laid_out(answer, *arguments):
    """What is right may be a transposed view: how it lies is no part of the puzzle."""
    return tree_map(lambda value: value.contiguous() if isinstance(value, Tensor) else value, answer(*arguments))


def _without_autograd(answer, *arguments) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(), no_autograd():
        return _laid_out(answer, *arguments)


def _gradient_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, depth, columns, rank = SHAPES[case.shape[0]]
    shapes = (rows, depth), (depth, rank), (rank, columns), (rows, columns)
    tensors = tuple(case.tensor(seed, device, shape) for seed, shape in enumerate(shapes, 1))
    for multiplier in (1.5, -0.5):
        yield Call(
            f"{rows}×{depth} to {columns}, rank {rank}, multiplier {multiplier}", tensors, (multiplier,),
            hint="of C = P Q, the gradient of P is grad_C Qᵀ and that of Q is Pᵀ grad_C. Here P is x A for B's "
            "gradient; for A's, first what comes back through B. Both gradients are scaled as y is.",
        )


def _no_gradient_of_W(call: Call) -> int:
    x, grad = call.tensors[0], call.tensors[3]
    return 2 * max(x.numel(), grad.numel())


GRADIENTS = InPyTorch(
    Spec(
        gradients,
        _gradient_calls,
        outputs=("grad_A", "grad_B"),
        scale=Sums(),
        cases=lambda names: [Case((number, 1)) for number in range(len(SHAPES))],
    ),
    _without_autograd,
    Quiet(
        _no_gradient_of_W,
        _without_autograd,
        "that is the gradient of all of W. Put the brackets so that the rank comes in first.",
    ),
)


def kept(wanted: Tensor, arrived: Tensor) -> tuple[Tensor, Tensor]:
    return (arrived - wanted).norm() / wanted.norm(), (arrived * wanted).sum() / (wanted * wanted).sum()


def _kept_magnitude(wanted: Tensor, arrived: Tensor) -> tuple[Tensor, Tensor]:
    """More of it for 1200 terms, which are added up in whatever order."""
    error, projection = (
        (arrived.norm() + wanted.norm()) / wanted.norm(),
        (arrived * wanted).sum() / wanted.square().sum(),
    )
    return tuple(max(1, wanted.numel() / 300) * size for size in (error, projection))


def _kept_calls(case: Case, device: torch.device) -> Iterator[Call]:
    wanted, noise = case.tensor(1, device), case.tensor(2, device)
    both = "error: how long the difference is, beside how long wanted is. projection: arrived · wanted over wanted · "
    both += "wanted, each a sum over all numbers."
    for name, arrived, hint in (
        ("all of it arrives, with noise", wanted + 0.3 * noise, both),
        ("nothing arrives", torch.zeros_like(wanted), f"then the error is 1, and the projection 0. {both}"),
        ("a quarter arrives", 0.25 * wanted, f"then the error is 0.75, and the projection 0.25. {both}"),
        ("its opposite arrives", -wanted, f"then the error is 2, and the projection has a sign. {both}"),
    ):
        yield Call(f"{'×'.join(map(str, case.shape))}, {name}", (wanted, arrived), hint=hint)


KEPT = InPyTorch(
    Spec(
        kept,
        _kept_calls,
        outputs=("error", "projection"),
        scale=Sums(magnitude=_kept_magnitude),
        cases=lambda names: [Case((6, 5)), Case((40, 30))],
    )
)


def many(x: Tensor, A: Tensor, B: Tensor, adapter: Tensor) -> Tensor:
    return torch.bmm(torch.bmm(x[:, None], A[adapter]), B[adapter])[:, 0]


def _many_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, depth, columns, rank, count = ADAPTERS[case.shape[0]]
    x, A = case.tensor(1, device, (rows, depth)), case.tensor(2, device, (count, depth, rank))
    B, drawn = case.tensor(3, device, (count, rank, columns)), case.integers(4, count, device, (rows,))
    hint = "row b takes A[adapter[b]] and B[adapter[b]]. Of a row's n · r numbers x A, r are its own: the others must "
    hint += "be 0 before they meet B."
    for name, chosen in (
        ("by chance", drawn),
        ("all the last one", torch.full_like(drawn, count - 1)),
        ("the first by nobody", drawn.clamp(min=min(1, count - 1))),
    ):
        yield Call(f"{rows} rows, {count} adapters, {name}", (x, A, B, chosen), hint=hint)


def _no_copies(call: Call) -> int:
    """A, B, the batch, and r numbers of each adapter for each row; less than an A for each row."""
    x, A, B, _ = call.tensors
    count, depth, rank = A.shape
    return max(A.numel(), B.numel(), len(x) * max(depth, B.shape[2]), len(x) * count * rank)


def _the_same_on_both(answer, x, A, B, adapter) -> None:
    """No other functions of torch than for values, which are held to the same limit."""
    with _Called() as on_gpu:
        answer(x, A, B, adapter)
    real = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in (x, A, B, adapter)]
    with _Called() as on_cpu:
        answer(*real)
    if on_gpu.names != on_cpu.names:
        raise Waits("right, but on a GPU it would not do the same")


MANY = InPyTorch(
    Spec(
        many,
        _many_calls,
        scale=Sums(k=8),  # x A is rounded before it meets B
        cases=lambda names: [Case((number, 1)) for number in range(len(ADAPTERS))],
    ),
    _laid_out,
    Quiet(
        _no_copies,
        _the_same_on_both,
        "that is as large as an A or a B for each row. A product of x with all adapters' A is [rows, n, r], which is "
        "small: torch.einsum writes it, and a mask keeps each row's own r.",
    ),
)

PUZZLES = {"forward": FORWARD, "gradients": GRADIENTS, "kept": KEPT, "many": MANY}
attempt = Judge(PUZZLES).attempt
