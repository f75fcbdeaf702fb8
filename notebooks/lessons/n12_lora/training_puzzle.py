"""fine_tune   add_lora(model, rank, alpha), fine_tune(model, batches, lr): as program.py has them."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lessons.n12_lora import program
from lessons.n12_lora.layer_puzzle import BELOW, close, off, require
from lessons.shared.puzzle import reader


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


LAYERS = ("bottom", "top.mlp.0", "top.mlp.2")
RANK, ALPHA = 4, 8.0


def _exact_model(model: nn.Module, multiplier: float, dense: Tensor, ids: Tensor) -> Tensor:
    """What a _Toy with these adapters gives, by weights that are merged."""
    weights = {name.replace(".linear.", "."): value for name, value in model.named_parameters()}
    for name in LAYERS:
        A, B = weights.pop(f"{name}.A"), weights.pop(f"{name}.B")
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + multiplier * (A @ B).T
    return torch.func.functional_call(_Toy(), weights, (dense, ids))


def _same_model(model: nn.Module, rank: int, alpha: float) -> None:
    """AssertionError: the model does not give what its adapters say, or a gradient is missing or another."""
    labels, dense, ids = _batches(1)[0]
    model, case = copy.deepcopy(model), f"add_lora, case rank {rank}, alpha {alpha:g}"
    trained = {name: parameter for name, parameter in model.named_parameters() if name.endswith((".A", ".B"))}
    with torch.no_grad():
        for name, parameter in trained.items():
            if name.endswith(".B"):
                parameter.normal_()
    actual, expected = model(dense, ids), _exact_model(model, alpha / rank, dense, ids)
    difference = off(actual.detach(), expected.detach())
    require(
        close(actual, expected, 1e-4), f"{case}: with a B that is not 0, the model's output {difference}",
        f"The multiplier of each layer is alpha / rank, here {alpha:g} / {rank}: give the layer both numbers.",
    )
    gradients = [
        torch.autograd.grad(nn.functional.binary_cross_entropy_with_logits(logits, labels), trained.values(),
                            allow_unused=True, retain_graph=True)
        for logits in (actual, expected) if logits.requires_grad
    ]
    require(len(gradients) == 2, f"{case}: the loss has no graph", BELOW)
    for name, got, wanted in zip(trained, *gradients, strict=True):
        require(got is not None, f"{case}: no gradient reaches {name}", BELOW)
        require(close(got, wanted, 1e-3), f"{case}: the gradient of {name}: {off(got, wanted)}", BELOW)


def _check_added(answer: Callable, rank: int = RANK, alpha: float = ALPHA) -> nn.Module:
    model = _Toy()
    before = copy.deepcopy(model.state_dict())
    _, dense, ids = _batches(0)[0]
    wanted = model(dense, ids).detach()
    deepest = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(min(deepest, len(inspect.stack(0)) + 200))  # layers in layers in layers end soon
        changed = answer(model, rank, alpha)
    except RecursionError as error:
        raise AssertionError(
            "add_lora never comes to its end\nHint: modules() also visits the new layers and finds the old nn.Linear "
            "in them again. Make a list of the modules before you replace any."
        ) from error
    finally:
        sys.setrecursionlimit(deepest)
    require(changed is model, "add_lora must return the model that it was given")
    parents = {name.rpartition(".")[0]: module for name, module in model.named_modules() if type(module) is nn.Linear}
    plain = [name for name in LAYERS if name not in parents]
    at = dict(model.named_modules())
    plain = [name for name in plain if not hasattr(at.get(name), "A")]
    require(
        not plain, f"{', '.join(plain)}: not replaced by a LoRALinear",
        "Children of a model have children too: model.modules() gives all modules.",
    )
    twice = [name for name, module in at.items() if hasattr(module, "A") and hasattr(module.linear, "A")]
    require(not twice, f"{', '.join(twice)}: a LoRALinear in a LoRALinear", "Make a list before you replace modules.")
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    wrong = sorted(name for name in trained if not name.endswith((".A", ".B")))
    require(not wrong, f"{', '.join(wrong)}: trained, but should be frozen", "Freeze every parameter except A and B.")
    missing = sorted(f"{name}.{part}" for name in LAYERS for part in "AB" if f"{name}.{part}" not in trained)
    require(
        not missing, f"{', '.join(missing)}: frozen, but should be trained",
        "Freeze the model first and make the new layers after that: their A and B then stay trainable.",
    )
    require(torch.equal(model(dense, ids), wanted), "with B = 0, the model does not give what it gave before")
    for name, value in model.state_dict().items():
        old = before.get(name.replace(".linear.", "."))
        require(old is None or torch.equal(value, old), f"{name} was changed", "The trained weights stay as they are.")
    require(at["bottom"].A.shape == (3, rank), f"the rank is an argument, and here it is {rank}")
    _same_model(model, rank, alpha)
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
    (lambda *arguments: _loop(*arguments, only=("B",)), "B has changed, but A has not: the optimizer needs both."),
)


def check_fine_tune(add: Callable, tune: Callable) -> str:
    # What torch imports late is imported before anybody looks at who is called.
    program.fine_tune(program.add_lora(_Toy(), 1, 1.0), _batches(0), 0.1)
    add = reader.alone(add, _LAYER)
    model = _check_added(add)
    _check_added(add, 2, 6.0)
    tune = reader.alone(tune, _LAYER)
    for lr in (0.5, 0.1):
        start, batches = copy.deepcopy(model), _batches(int(10 * lr))
        mine = copy.deepcopy(start)
        losses = tune(mine, batches, lr)
        case = f"fine_tune, case {len(batches)} batches, lr {lr}"
        require(
            isinstance(losses, list | tuple) and len(losses) == len(batches),
            f"{case}: fine_tune must return a list with the loss of each of the {len(batches)} batches",
        )
        graph = any(isinstance(loss, Tensor) and loss.requires_grad for loss in losses)
        require(not graph, f"{case}: a loss still holds its graph", "Use loss.detach(): it frees the step's tensors.")
        frozen = [
            name for name, value in mine.state_dict().items()
            if not name.endswith((".A", ".B")) and not torch.equal(value, start.state_dict()[name])
        ]
        require(not frozen, f"{case}: {', '.join(frozen[:1])} was changed", "Only A and B are trained.")
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
