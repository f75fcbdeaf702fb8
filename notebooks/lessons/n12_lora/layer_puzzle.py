"""lora_layer   LoRALinear(linear, rank, alpha): the frozen layer, and beside it what is trained."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lessons.shared.puzzle import reader


class _OfWsSize(TorchDispatchMode):
    """Notes the operators that make a tensor of so many elements, views left out."""

    def __init__(self, size: int):
        super().__init__()
        self.size, self.made = size, []

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        outputs = operator(*arguments, **(named or {}))
        storages = {x.untyped_storage()._cdata for x in tree_leaves((arguments, named)) if isinstance(x, Tensor)}
        for out in tree_leaves(outputs):
            if isinstance(out, Tensor) and out.numel() == self.size and out.untyped_storage()._cdata not in storages:
                self.made.append(f"{operator._schema.name.removeprefix('aten::')} makes a tensor of {list(out.shape)}")
        return outputs


def require(holds: bool, wrong: str, hint: str = "") -> None:
    if not holds:
        raise AssertionError(f"{wrong}\nHint: {hint}" if hint else wrong)


def _built(answer: Callable, linear: nn.Linear, rank: int, alpha: float) -> nn.Module:
    """The reader's layer, its parameters looked at."""
    layer = answer(linear, rank, alpha)
    require(isinstance(layer, nn.Module), f"LoRALinear must be an nn.Module; got {type(layer).__name__}")
    sizes = {"A": (linear.in_features, rank), "B": (rank, linear.out_features)}
    for name, size in sizes.items():
        matrix = getattr(layer, name, None)
        require(matrix is not None, f"the layer has no {name}", f"The layer needs self.{name} = nn.Parameter(…).")
        require(
            isinstance(matrix, nn.Parameter),
            f"{name} is not an nn.Parameter",
            "An optimizer gets the list model.parameters(), and only an nn.Parameter is in it.",
        )
        require(tuple(matrix.shape) == size, f"{name}: expected the shape {size}, got {tuple(matrix.shape)}")
        require(
            matrix.dtype == linear.weight.dtype,
            f"{name}: expected {linear.weight.dtype}, the dtype of W; got {matrix.dtype}",
            "Pass dtype=linear.weight.dtype, and the device in the same way.",
        )
        require(matrix.requires_grad, f"{name} is not trained: requires_grad is False", "Only W and bias are frozen.")
    trained = {name for name, parameter in layer.named_parameters() if parameter.requires_grad}
    require(
        trained == {"A", "B"},
        f"the trained parameters are {', '.join(sorted(trained))}; expected A and B alone",
        "Freeze W and bias: linear.requires_grad_(False).",
    )
    known = {name for name, _ in layer.named_parameters()}
    require(
        {"A", "B"} | {f"linear.{name}" for name, _ in linear.named_parameters()} == known,
        f"the layer's parameters are {', '.join(sorted(known))}; expected A, B and those of self.linear",
    )
    bound = linear.in_features**-0.5
    drawn = layer.A.detach().float()
    require(
        bool((drawn != 0).any()),
        "A is 0, and so is B",
        "Both gradients stay 0: the gradient of A contains the factor B, and that of B the factor A.",
    )
    require(
        0.2 * bound < float(drawn.std()) < bound and float(drawn.abs().max()) < 5 * bound,
        f"A's standard deviation is {float(drawn.std()):.2g}; expected about {bound * 3**-0.5:.2g}",
        f"Use nn.init.uniform_(self.A, -bound, bound) with bound = 1/√in = {bound:.2g}.",
    )
    require(
        abs(float(drawn.mean())) < 0.4 * bound,
        f"A's mean is {float(drawn.mean()):.2g}; expected a mean near 0",
        f"The elements of A have both signs: nn.init.uniform_(self.A, -bound, bound) with bound = 1/√in = {bound:.2g}.",
    )
    require(
        not layer.B.any(),
        "B is not 0",
        "With B = 0, the layer begins equal to the trained one: training goes on from it.",
    )
    return layer


def check_layer(answer: Callable) -> str:
    _check_device(answer)  # before anybody looks at who is called: for meta torch imports late
    answer = reader.alone(answer)
    for shape, inputs, outputs, rank, alpha, bias, dtype in (
        ((7,), 24, 20, 4, 6.0, True, torch.float32),
        ((3, 2), 40, 30, 2, -3.0, True, torch.float32),
        ((5,), 16, 12, 8, 8.0, False, torch.bfloat16),
    ):
        case = f"lora_layer, case {inputs} to {outputs}, rank {rank}, alpha {alpha:g}, {str(dtype)[6:]}"
        linear = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
        with torch.no_grad():
            linear.weight.mul_(2)
        frozen = {name: value.clone() for name, value in linear.state_dict().items()}
        x = torch.randn(*shape, inputs).to(dtype)
        wanted = linear(x).detach()
        try:
            layer = _built(answer, linear, rank, alpha)
            require(
                layer.linear.weight.data_ptr() == linear.weight.data_ptr(), "W was copied",
                "Make no tensor of W's size: self.linear = linear keeps the trained layer itself.",
            )
            out = reader.alone(layer)(x)
            with _OfWsSize(inputs * outputs) as seen:
                layer(x)
            require(isinstance(out, Tensor), f"forward must return a tensor; got {type(out).__name__}")
            require(out.dtype == dtype, f"forward gives {out.dtype} for {dtype}")
            require(
                torch.equal(out.detach(), wanted), "with B = 0, the layer does not give what linear gives",
                "The result is linear(x) + multiplier · (x A) B, and here the second term is 0.",
            )
            require(
                _begins(layer, x), "with B = 0, no gradient reaches B",
                "Training begins with this gradient: compute the adapter's product even while B is 0.",
            )
            with torch.no_grad():
                layer.B.normal_()
            leaf = x.clone().requires_grad_()
            out = layer(leaf)
            actual, expected = out.detach().double(), _exactly(linear, layer, x, alpha / rank)
            tolerance = 0.03 if dtype == torch.bfloat16 else 1e-4
            require(
                close(actual, expected, tolerance), off(actual, expected),
                "Add multiplier · (x A) B with multiplier = alpha / rank. The bias is in linear(x) already.",
            )
            require(
                not seen.made,
                f"right, but {(seen.made or [''])[0]}, as large as W",
                "The product x A is thin. So compute (x A) B, and never A B.",
            )
            with torch.no_grad():
                evaluated = layer.eval()(x)
            require(
                close(evaluated.double(), expected, tolerance), f"after eval(): {off(evaluated.double(), expected)}",
                "The adapter belongs to the layer when it predicts, too: forward need not ask self.training.",
            )
            layer.train()
            _same_gradients(layer, leaf, out, alpha / rank, tolerance)
            require(torch.equal(leaf, x), "x was changed", "x belongs to the caller: make a new tensor.")
            same = {name: torch.equal(value, frozen[name]) for name, value in linear.state_dict().items()}
            require(all(same.values()), "W or bias was changed", "W and bias are frozen: nothing may write to them.")
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    return "lora_layer: 3 cases passed on the CPU"


def _begins(layer: nn.Module, x: Tensor) -> bool:
    """Whether the gradient of B is there and is not 0."""
    out = layer(x)
    gradient = torch.autograd.grad(out.square().sum(), layer.B, allow_unused=True)[0] if out.requires_grad else None
    return gradient is not None and bool(gradient.any())


def _same_gradients(layer: nn.Module, x: Tensor, out: Tensor, multiplier: float, tolerance: float) -> None:
    """AssertionError: which of x, A and B gets no gradient, or another; W and bias get none."""
    grad = torch.randn_like(out)
    if out.requires_grad:
        out.backward(grad)
    for name, leaf in {"A": layer.A, "B": layer.B, "x": x}.items():
        hint = BELOW if name == "x" else "The functions detach and no_grad cut the graph, and so does .data."
        require(leaf.grad is not None, f"right, but no gradient reaches {name}", hint)
    W, A, B = (matrix.detach().double() for matrix in (layer.linear.weight, layer.A, layer.B))
    rows, above = x.detach().double().flatten(0, -2), grad.double().flatten(0, -2)
    thin, frozen = multiplier * above @ B.T, above @ W
    expected = {"x": frozen + thin @ A.T, "A": rows.T @ thin, "B": multiplier * (rows @ A).T @ above}
    for name, leaf in {"A": layer.A, "B": layer.B, "x": x}.items():
        gradient, hint = (
            leaf.grad.double().flatten(0, -2), "The graph must hold every step from A, B and x to the result."
        )
        if name == "x" and close(gradient, frozen, tolerance):
            hint = "The gradient of x has two parts: one through W, and one through A and B. The second is missing."
        elif name == "x":
            hint = BELOW
        require(
            close(gradient, expected[name], tolerance), f"the gradient of {name}: {off(gradient, expected[name])}", hint
        )
    trained = [name for name, parameter in layer.linear.named_parameters() if parameter.grad is not None]
    require(
        not trained, f"linear.{', linear.'.join(trained)} got a gradient",
        "W and bias are frozen: requires_grad stays False, in forward too.",
    )


BELOW = (
    "The gradient must pass through the frozen product, to the layers below: W is frozen, and x is not. "
    "requires_grad_(False) freezes W. no_grad and detach cut x off."
)


def close(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether the difference's norm is within this share of the expected one's."""
    return actual.shape == expected.shape and bool((actual - expected).norm() <= tolerance * expected.norm())


def _check_device(answer: Callable) -> None:
    """meta stands for the GPU that is not here."""
    layer = answer(nn.Linear(24, 20, device="meta"), 4, 6.0)
    for name in "AB":
        matrix = getattr(layer, name, None)
        require(
            not isinstance(matrix, Tensor) or matrix.device.type == "meta",
            f"lora_layer, case W on another device: {name} is not on the device of W",
            "Pass device=linear.weight.device: the model may be on the GPU already.",
        )


def _exactly(linear: nn.Linear, layer: nn.Module, x: Tensor, multiplier: float) -> Tensor:
    A, B = layer.A.detach().double(), layer.B.detach().double()
    bias = 0 if linear.bias is None else linear.bias.double()
    return (x.double() @ linear.weight.double().T + bias + multiplier * (x.double() @ A) @ B).detach()


def off(actual: Tensor, expected: Tensor) -> str:
    if actual.shape != expected.shape:
        return f"shape: expected {list(expected.shape)}, got {list(actual.shape)}"
    place = tuple((actual - expected).abs().nan_to_num(torch.inf).flatten().argmax().unsqueeze(0).tolist())
    want, got = (float(values.flatten()[place]) for values in (expected, actual))
    return f"at {place[0]} of {actual.numel()}: expected {want:.4g}, got {got:.4g}"
