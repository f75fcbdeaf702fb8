"""Whether two programs train alike, step by step: each step begins with the first one's weights in both.

Losses that part after some steps are no fault. Adagrad's first update of a weight is lr · g / |g|, so lr · sign(g),
however small g is. Where g is no larger than its own rounding, two right programs move the weight in opposite
directions, and from there on their losses part (traces/README.md has figures). So no step is held to the steps before
it. What is compared are numbers that rounding does not part:

    the loss        of the same weights and rows
    the gradient    of each tensor, and of each table by itself, whether dense or sparse, in one tensor or in 26
    the update      what the rule makes of the program's own gradient, in float64: new weights, and sums of squares
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

STEPS = 4  # the batches of a program, once around: so all programs have the same batch next
OF_A_LOSS = 1e-5
OF_A_ROW, OF_A_TENSOR = 1e-3, 2e-5  # how far a gradient may be off: of its row's largest number, and of its tensor's
ADAGRAD_EPS = 1e-10  # torch's default
ROUNDING = torch.finfo(torch.float32).eps
ROWS = 1 << 20  # of a table at a time: its numbers in float64 take memory


@dataclass(frozen=True)
class Program:
    """A step that trains the model. same: whether it computes what the first of its part does."""

    name: str
    step: Callable[[], Tensor]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    same: bool = True

    @functools.cached_property
    def parameters(self) -> list[tuple[Tensor, bool]]:
        """(parameter, whether it is of the tables): the MLPs' first, each in its order."""
        named = [(weight, "table" in name) for name, weight in self.model.named_parameters()]
        return sorted(named, key=lambda pair: pair[1])

    def heights(self) -> list[int]:
        return [len(weight) for weight, of_tables in self.parameters if of_tables]

    def weights(self, heights: Sequence[int]) -> list[Tensor]:
        return self._parts(heights, lambda weight: weight.detach())

    def sums(self, heights: Sequence[int]) -> list[Tensor]:
        """Adagrad's sums of squares; [] of SGD."""
        if not isinstance(self.optimizer, torch.optim.Adagrad):
            return []
        return self._parts(heights, lambda weight: self.optimizer.state[weight]["sum"])

    def gradients(self, heights: Sequence[int]) -> list[Tensor]:
        """Dense ones, summed as the optimizer sums them."""
        return self._parts(heights, lambda weight: _dense(weight.grad))

    def added(self, heights: Sequence[int]) -> list[Tensor]:
        """[rows] each: how many numbers the optimizer adds to an element of the row, one by one."""

        summed = bool(self.sums(heights))  # torch's Adagrad sums a sparse gradient first

        def count(weight: Tensor) -> Tensor:
            times = weight.new_ones(len(weight))
            if weight.grad.is_sparse and not summed:
                times = weight.grad._indices()[0].bincount(minlength=len(weight)).to(weight.dtype)
            return times

        return self._parts(heights, count)

    def rates(self, heights: Sequence[int]) -> list[tuple[float, float]]:
        """(learning rate, weight decay) of each part."""
        of = {weight: (group["lr"], group["weight_decay"])
              for group in self.optimizer.param_groups for weight in group["params"]}
        mlps = [of[weight] for weight, of_tables in self.parameters if not of_tables]
        (tables,) = {of[weight] for weight, of_tables in self.parameters if of_tables}
        return mlps + [tables] * len(heights)

    def _parts(self, heights: Sequence[int], of: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """of(each parameter), that of the tables in parts of so many rows."""
        mlps = [of(weight) for weight, of_tables in self.parameters if not of_tables]
        tables = [of(weight) for weight, of_tables in self.parameters if of_tables]
        if len(tables) == 1:
            tables = list(tables[0].split(list(heights)))
        assert [len(table) for table in tables] == list(heights), f"{self.name}: tables of other sizes"
        return mlps + tables


def disagreement(first: Program, other: Program) -> str:
    """What differs, and in which step; "" if nothing does. Where other need not compute the same, or is the first, its
    update alone is compared. Both have trained STEPS steps more."""
    heights, alone = first.heights(), other is first or not other.same
    if alone:
        heights = other.heights()
    for number in range(1, STEPS + 1):
        before = _state(other if alone else first, heights)
        if not alone:
            expected, after = (_copied(first.step()), _copied(first.gradients(heights))), _state(first, heights)
            _restore(other, heights, before)
        loss = other.step().detach()
        error = "" if loss.isfinite() else f"the loss is {loss.item()}"
        if not alone:
            error = error or _of_loss(loss, expected[0]) or _of_gradients(other.gradients(heights), expected[1])
        error = error or _of_update(other, heights, *before)
        if not alone:
            _restore(first, heights, after)
        if error:
            return f"step {number}: {error}"
    return ""


def _of_loss(loss: Tensor, expected: Tensor) -> str:
    error = (loss - expected).abs().item()
    return "" if error <= OF_A_LOSS else f"the loss differs by {error:.2g}"


def _of_gradients(gradients: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    for number, (gradient, right) in enumerate(zip(gradients, expected, strict=True)):
        of_tensor = OF_A_TENSOR * right.abs().max()
        within = [
            ((one - other).abs() <= OF_A_ROW * other.abs().amax(-1, keepdim=True) + of_tensor).all()
            for one, other in zip(gradient.split(ROWS), right.split(ROWS), strict=True)
        ]
        if not torch.stack(within).all():
            error = (gradient - right).abs().max() / right.abs().max()
            return f"the gradient of tensor {number} differs, by up to {error.item():.2g} of its largest number"
    return ""


def _of_update(program: Program, heights: Sequence[int], weights: Sequence[Tensor], sums: Sequence[Tensor]) -> str:
    """From these weights and sums, by the program's own gradient."""
    parts = zip(weights, program.weights(heights), program.gradients(heights), program.added(heights),
                program.rates(heights), strict=True)
    after = program.sums(heights)
    for number, (old, new, gradient, added, (rate, decay)) in enumerate(parts):
        noise = 4 * ROUNDING * gradient.abs().max().double()  # of the gradient, which may be summed anew
        right = []
        for begin in range(0, len(old), ROWS):
            rows = slice(begin, begin + ROWS)
            w, g = old[rows].double(), gradient[rows].double()
            g = g + decay * w
            most_moved = rate if sums else (rate * g).abs()
            slack = (4 + added[rows].view(-1, *[1] * (old.dim() - 1))) * ROUNDING * (w.abs() + most_moved)
            if sums:
                s, total = sums[number][rows].double(), after[number][rows]
                low, high = ((g.abs() + by).clamp(min=0).square() + s for by in (-noise, noise))
                right.append(((total >= low * (1 - 8 * ROUNDING)) & (total <= high * (1 + 8 * ROUNDING))).all())
                steps = [bound / ((s + bound.square()).sqrt() + ADAGRAD_EPS) for bound in (g - noise, g + noise)]
                touched = g != 0  # a row without a gradient stays as it is
                steps = [torch.where(touched, step, 0) for step in steps]
            else:
                steps = [g, g]
            least, most = w - rate * steps[1] - slack, w - rate * steps[0] + slack
            right.append(((new[rows] >= least) & (new[rows] <= most)).all())
        if not torch.stack(right).all():
            return f"the update of tensor {number} is not what the rule makes of its gradient"
    return ""


def _dense(gradient: Tensor) -> Tensor:
    return gradient.coalesce().to_dense() if gradient.is_sparse else gradient


def _copied(tensors: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
    return tensors.detach().clone() if isinstance(tensors, Tensor) else [tensor.clone() for tensor in tensors]


def _state(program: Program, heights: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
    return _copied(program.weights(heights)), _copied(program.sums(heights))


def _restore(program: Program, heights: Sequence[int], state: tuple[list[Tensor], list[Tensor]]) -> None:
    for own, kept in zip((program.weights(heights), program.sums(heights)), state, strict=True):
        for tensor, value in zip(own, kept, strict=True):
            tensor.copy_(value)
