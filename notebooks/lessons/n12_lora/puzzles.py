"""The puzzles of 12_lora.ipynb: what each must give, and attempt(), which judges an answer.

    lora_layer   LoRALinear(linear, rank, alpha): the frozen layer, and beside it what is trained
    fine_tune    add_lora(model, rank, alpha), fine_tune(model, batches, lr): as program.py has them
The kernel's is in kernel_puzzles.py.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lessons.n12_lora import kernel_puzzles, lora_kernel, program
from lessons.shared.puzzle import Judge, Own, reader

# ---------------------------------------------------------------------------------------------------------- lora_layer


class _OfWsSize(TorchDispatchMode):
    """Notes the operators that make a tensor of so many elements, views left out."""

    def __init__(self, size: int):
        super().__init__()
        self.size, self.made = size, []

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        given = operator(*arguments, **(named or {}))
        taken = {x.untyped_storage()._cdata for x in tree_leaves((arguments, named)) if isinstance(x, Tensor)}
        for made in tree_leaves(given):
            if isinstance(made, Tensor) and made.numel() == self.size and made.untyped_storage()._cdata not in taken:
                self.made.append(f"{operator._schema.name.removeprefix('aten::')} makes a tensor of {list(made.shape)}")
        return given


def _require(holds: bool, wrong: str, hint: str = "") -> None:
    if not holds:
        raise AssertionError(f"{wrong}\nHint: {hint}" if hint else wrong)


def _built(answer: Callable, linear: nn.Linear, rank: int, alpha: float) -> nn.Module:
    """The reader's layer, its parameters looked at."""
    layer = answer(linear, rank, alpha)
    _require(isinstance(layer, nn.Module), f"LoRALinear must be an nn.Module; got {type(layer).__name__}")
    sizes = {"A": (linear.in_features, rank), "B": (rank, linear.out_features)}
    for name, size in sizes.items():
        matrix = getattr(layer, name, None)
        _require(matrix is not None, f"the layer has no {name}", f"The layer needs self.{name} = nn.Parameter(…).")
        _require(
            isinstance(matrix, nn.Parameter),
            f"{name} is not an nn.Parameter",
            "An optimizer gets the list model.parameters(), and only an nn.Parameter is in it.",
        )
        _require(tuple(matrix.shape) == size, f"{name}: expected the shape {size}, got {tuple(matrix.shape)}")
        _require(
            matrix.dtype == linear.weight.dtype,
            f"{name}: expected {linear.weight.dtype}, the dtype of W; got {matrix.dtype}",
            "Pass dtype=linear.weight.dtype, and the device in the same way.",
        )
        _require(matrix.requires_grad, f"{name} is not trained: requires_grad is False", "Only W and bias are frozen.")
    trained = {name for name, parameter in layer.named_parameters() if parameter.requires_grad}
    _require(
        trained == {"A", "B"},
        f"the trained parameters are {', '.join(sorted(trained))}; expected A and B alone",
        "Freeze W and bias: linear.requires_grad_(False).",
    )
    known = {name for name, _ in layer.named_parameters()}
    _require(
        {"A", "B"} | {f"linear.{name}" for name, _ in linear.named_parameters()} == known,
        f"the layer's parameters are {', '.join(sorted(known))}; expected A, B and those of self.linear",
    )
    bound = linear.in_features**-0.5
    drawn = layer.A.detach().float()
    _require(
        bool((drawn != 0).any()),
        "A is 0, and so is B",
        "Both gradients stay 0: the gradient of A contains the factor B, and that of B the factor A.",
    )
    _require(
        0.2 * bound < float(drawn.std()) < bound and float(drawn.abs().max()) < 5 * bound,
        f"A's standard deviation is {float(drawn.std()):.2g}; expected about {bound * 3**-0.5:.2g}",
        f"Use nn.init.uniform_(self.A, -bound, bound) with bound = 1/√in = {bound:.2g}.",
    )
    _require(
        abs(float(drawn.mean())) < 0.4 * bound,
        f"A's mean is {float(drawn.mean()):.2g}; expected a mean near 0",
        f"The elements of A have both signs: nn.init.uniform_(self.A, -bound, bound) with bound = 1/√in = {bound:.2g}.",
    )
    _require(
        not layer.B.any(),
        "B is not 0",
        "With B = 0, the layer begins equal to the trained one: training goes on from it.",
    )
    return layer


def _check_layer(answer: Callable) -> str:
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
            out = reader.alone(layer)(x)
            with _OfWsSize(inputs * outputs) as seen:
                layer(x)
            _require(isinstance(out, Tensor), f"forward must return a tensor; got {type(out).__name__}")
            _require(out.dtype == dtype, f"forward gives {out.dtype} for {dtype}")
            _require(
                torch.equal(out.detach(), wanted), "with B = 0, the layer does not give what linear gives",
                "The result is linear(x) + multiplier · (x A) B, and here the second term is 0.",
            )
            with torch.no_grad():
                layer.B.normal_()
            out = layer(x)
            found, expected = out.detach().double(), _exactly(linear, layer, x, alpha / rank)
            close = 0.03 if dtype == torch.bfloat16 else 1e-4
            _require(
                bool((found - expected).norm() <= close * expected.norm()), _off(found, expected),
                "Add multiplier · (x A) B with multiplier = alpha / rank. The bias is in linear(x) already.",
            )
            _require(
                not seen.made,
                f"right, but {(seen.made or [''])[0]}, as large as W",
                "The product x A is thin. So compute (x A) B, and never A B.",
            )
            out.sum().backward()
            for name in "AB":
                _require(
                    getattr(layer, name).grad is not None, f"no gradient reaches {name}",
                    "The functions detach and no_grad cut the graph, and so does .data.",
                )
            same = {name: torch.equal(value, frozen[name]) for name, value in linear.state_dict().items()}
            _require(all(same.values()), "W or bias was changed", "W and bias are frozen: nothing may write to them.")
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
    return "lora_layer: 3 cases passed on the CPU"


def _check_device(answer: Callable) -> None:
    """meta stands for the GPU that is not here."""
    layer = answer(nn.Linear(24, 20, device="meta"), 4, 6.0)
    for name in "AB":
        matrix = getattr(layer, name, None)
        _require(
            not isinstance(matrix, Tensor) or matrix.device.type == "meta",
            f"lora_layer, case W on another device: {name} is not on the device of W",
            "Pass device=linear.weight.device: the model may be on the GPU already.",
        )


def _exactly(linear: nn.Linear, layer: nn.Module, x: Tensor, multiplier: float) -> Tensor:
    A, B = layer.A.detach().double(), layer.B.detach().double()
    bias = 0 if linear.bias is None else linear.bias.double()
    return (x.double() @ linear.weight.double().T + bias + multiplier * (x.double() @ A) @ B).detach()


def _off(found: Tensor, expected: Tensor) -> str:
    if found.shape != expected.shape:
        return f"shape: expected {list(expected.shape)}, got {list(found.shape)}"
    place = tuple((found - expected).abs().nan_to_num(torch.inf).flatten().argmax().unsqueeze(0).tolist())
    want, got = (float(values.flatten()[place]) for values in (expected, found))
    return f"at {place[0]} of {found.numel()}: expected {want:.4g}, got {got:.4g}"


# ----------------------------------------------------------------------------------------------------------- fine_tune


class _Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)


class _Toy(nn.Module):
    """A model with a table, and linear layers at three depths."""

    def __init__(self):
        super().__init__()
        self.table, self.bottom, self.top = nn.Embedding(9, 4), nn.Linear(3, 4), _Inner()

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return self.top(torch.cat([self.bottom(dense), self.table(ids)], 1)).squeeze(1)


# What an answer may call: the lesson's layer, if the reader's own has not passed.
_LAYER = (program.LoRALinear, program.LoRALinear.__init__, program.LoRALinear.forward)
_STEPS = "An iteration is loss, zero_grad(), backward(), step(). Use plain torch.optim.SGD with the lr that is given."
_LOSS = (
    "Before the first step, only the loss itself can differ. It is the mean over the batch: "
    "F.binary_cross_entropy_with_logits(model(dense, ids), labels)."
)


def _batches(seed: int, count: int = 4, rows: int = 16) -> list[tuple[Tensor, Tensor, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    return [
        (torch.randint(2, (rows,), generator=random).float(), torch.randn(rows, 3, generator=random),
         torch.randint(9, (rows,), generator=random))
        for _ in range(count)
    ]


def _check_added(answer: Callable) -> nn.Module:
    model = _Toy()
    before = copy.deepcopy(model.state_dict())
    _, dense, ids = _batches(0)[0]
    wanted = model(dense, ids).detach()
    deepest = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(min(deepest, len(inspect.stack(0)) + 200))  # layers in layers in layers end soon
        changed = answer(model, 4, 8.0)
    except RecursionError as error:
        raise AssertionError(
            "add_lora never comes to its end\nHint: modules() also visits the new layers and finds the old nn.Linear "
            "in them again. Make a list of the modules before you replace any."
        ) from error
    finally:
        sys.setrecursionlimit(deepest)
    _require(changed is model, "add_lora must return the model that it was given")
    parents = {name.rpartition(".")[0]: module for name, module in model.named_modules() if type(module) is nn.Linear}
    plain = [name for name in ("bottom", "top.mlp.0", "top.mlp.2") if name not in parents]
    at = dict(model.named_modules())
    plain = [name for name in plain if not hasattr(at.get(name), "A")]
    _require(
        not plain, f"{', '.join(plain)}: not replaced by a LoRALinear",
        "Children of a model have children too: model.modules() gives all modules.",
    )
    twice = [name for name, module in at.items() if hasattr(module, "A") and hasattr(module.linear, "A")]
    _require(not twice, f"{', '.join(twice)}: a LoRALinear in a LoRALinear", "Make a list before you replace modules.")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    wrong = sorted(name for name in trained if not name.endswith((".A", ".B")))
    _require(not wrong, f"{', '.join(wrong)}: trained, but should be frozen", "Freeze every parameter except A and B.")
    missing = sorted(
        f"{name}.{part}" for name in ("bottom", "top.mlp.0", "top.mlp.2") for part in "AB"
        if f"{name}.{part}" not in trained
    )
    _require(
        not missing, f"{', '.join(missing)}: frozen, but should be trained",
        "Freeze the model first and make the new layers after that: their A and B then stay trainable.",
    )
    _require(torch.equal(model(dense, ids), wanted), "with B = 0, the model does not give what it gave before")
    for name, value in model.state_dict().items():
        old = before.get(name.replace(".linear.", "."))
        _require(old is None or torch.equal(value, old), f"{name} was changed", "The trained weights stay as they are.")
    _require(at["bottom"].A.shape == (3, 4), "the rank is an argument, and here it is 4")
    return model


def _not_zeroed(model, batches, lr):
    return _loop(model, batches, lr, zero=False)


def _no_step(model, batches, lr):
    with torch.no_grad():
        return [nn.functional.binary_cross_entropy_with_logits(model(*batch[1:]), batch[0]) for batch in batches]


def _loop(model, batches, lr, zero=True, only=("A", "B")):
    trained = [parameter for name, parameter in model.named_parameters() if name.endswith(only)]
    losses = []
    for labels, dense, ids in batches:
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, ids), labels)
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            for parameter, gradient in zip(trained, gradients, strict=True):
                parameter.sum_of = gradient + (0 if zero else getattr(parameter, "sum_of", 0))
                parameter -= lr * parameter.sum_of
        losses.append(loss.detach())
    return losses


# What an answer may have done, if it gives just what this gives; and what to say of it.
_MISTAKES = (
    (
        _no_step,
        "No A and no B has changed. backward() fills the gradients, step() uses them, and the optimizer needs A and B. "
        "With A alone nothing changes, because the gradient of A is 0 as long as B is 0.",
    ),
    (
        _not_zeroed,
        "The gradients of the last step are still there, and backward() adds to them: optimizer.zero_grad() clears "
        "them first.",
    ),
    (lambda *given: _loop(*given, only=("B",)), "B has changed, but A has not: the optimizer needs both."),
)


def _check_fine_tune(add: Callable, tune: Callable) -> str:
    # What torch imports late is imported before anybody looks at who is called.
    program.fine_tune(program.add_lora(_Toy(), 1, 1.0), _batches(0), 0.1)
    model = _check_added(reader.alone(add, _LAYER))
    tune = reader.alone(tune, _LAYER)
    for lr in (0.5, 0.1):
        start, batches = copy.deepcopy(model), _batches(int(10 * lr))
        mine = copy.deepcopy(start)
        losses = tune(mine, batches, lr)
        case = f"fine_tune, case {len(batches)} batches, lr {lr}"
        _require(
            isinstance(losses, list | tuple) and len(losses) == len(batches),
            f"{case}: fine_tune must return a list with the loss of each of the {len(batches)} batches",
        )
        graph = any(isinstance(loss, Tensor) and loss.requires_grad for loss in losses)
        _require(not graph, f"{case}: a loss still holds its graph", "Use loss.detach(): it frees the step's tensors.")
        frozen = [
            name for name, value in mine.state_dict().items()
            if not name.endswith((".A", ".B")) and not torch.equal(value, start.state_dict()[name])
        ]
        _require(not frozen, f"{case}: {', '.join(frozen[:1])} was changed", "Only A and B are trained.")
        expected = copy.deepcopy(start)
        if why := _differs(_loop(expected, batches, lr), expected, losses, mine):
            hint = _LOSS if "loss of batch 1:" in why else _STEPS
            for mistake, words in _MISTAKES:
                other = copy.deepcopy(start)
                if not _differs(mistake(other, batches, lr), other, losses, mine):
                    hint = words
                    break
            raise AssertionError(f"{case}: {why}\nHint: {hint}")
    return "fine_tune: 3 cases passed on the CPU"


def _differs(losses: list, model: nn.Module, got_losses: list, got: nn.Module) -> str:
    for number, (want, mine) in enumerate(zip(losses, got_losses, strict=True), 1):
        if abs(float(want) - float(mine)) > 1e-4 * abs(float(want)):
            return f"the loss of batch {number}: expected {float(want):.6g}, got {float(mine):.6g}"
    for (name, want), mine in zip(model.named_parameters(), got.parameters(), strict=True):
        if not torch.allclose(want, mine, rtol=1e-4, atol=1e-6):
            return f"{name} is not what plain SGD makes of it"
    return ""


PUZZLES = kernel_puzzles.PUZZLES | {"lora_layer": Own(_check_layer), "fine_tune": Own(_check_fine_tune)}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt
OURS = {
    "lora_layer": program.LoRALinear,
    "fine_tune": (program.add_lora, program.fine_tune),
    "lora_kernel": lora_kernel.lora_kernel,
}


def passed(name: str) -> Callable | tuple:
    """The reader's answer, if it passed when it was last tried; else the lecture's."""
    return JUDGE.solved.get(name, OURS[name])
