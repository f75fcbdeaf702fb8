"""Whether a training step is right: what it changes, beside the same step in float64 from the same state.

Losses alone do not tell. Adagrad's first update of a weight is lr · g / (|g| + eps), which is lr · sign(g) however
small g is. Where g is no larger than its rounding, two right implementations move the weight by lr in opposite
directions, and from there on their losses part. So no step is held to the steps before it: each begins with the
implementation's own weights and sums of squares. Eager operations take the gradient of that state twice, in float64 and
in the implementation's precision. The new weights and sums must lie between those that the rule makes of the float64
gradient less and plus twice eager's error, the largest of a row: both signs are between these only where a gradient is
at rounding's scale. In TF32 a sum at ReLU's zero is often cut off by one rounding and not by another, and then a row
of the batch gives a unit another gradient, or its only one. Eager's is but one of the roundings, so others are taken
beside it: float64 gradients with each weight of the MLPs off by up to two of TF32's roundings, one of each factor of a
product. What lies outside, summed over a tensor, is its stray, a share of its update. Each table counts as a tensor,
of the rows that the batch looks up; a row that it does not look up must stay as it is. An id that is forgotten is
little of a table's update, so the row that strays most has a limit of its own.

In TF32 some chance is left. A unit that one row of the batch lights, or none, is 1/16 of the last layer of `main`'s
bottom MLP; Adagrad moves it by lr, be its gradient a thousandth of the others', and none of the roundings may show it.
So one step of a tensor may stray further than the others, though not by most of its update: a wrong step is wrong again
with the next batch, and one update that is left out is all of it.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from model.bench.trainer import TABLES, Trainer
from model.config import DLRMConfig, Precision, TableOptimizer
from model.dlrm import DLRM
from model.step import Batch

# How much may stray: what no rounding beside it shows, of sums at ReLU's zero, where Adagrad moves a unit by lr. In so
# many steps a tensor may stray further, up to the second limit.
MOST_STRAY = {Precision.FP32: 0.01, Precision.TF32: 0.05}
SPARED = {Precision.FP32: 0, Precision.TF32: 1}
MOST_OF_A_SPARED = 0.5
# How much of a looked-up row's update may stray in half of the steps. In TF32, sums at ReLU's zero may be most of it.
MOST_OF_A_ROW = {Precision.FP32: 0.5, Precision.TF32: math.inf}
ROW = "the row that strays most"
# How many roundings beside eager's are taken, and how far a weight is off in them: TF32 has 10 bits behind the point,
# and rounds by up to half of the last.
OTHERS = {Precision.FP32: 0, Precision.TF32: 16}
TWO_ROUNDINGS = 2.0**-10
ADAGRAD_EPS = 1e-10  # torch's default, which no configuration changes
ROUNDING = torch.finfo(torch.float32).eps


class Shadow:
    """Eager models that take a step from another model's state, in float64 and in float32 (TF32 where that is set)."""

    def __init__(
        self, shape: DLRMConfig, rule: TableOptimizer, rate: float, device: torch.device,
        precision: Precision = Precision.FP32,
    ):
        self.rule, self.rate, self.others = rule, rate, OTHERS[precision]
        self.random = torch.Generator(device).manual_seed(0)
        with torch.device(device):
            self.exact, self.rounded = DLRM(shape).to(device).double(), DLRM(shape).to(device)

    def follow(self, trainer: Trainer, batch: Batch) -> tuple[Tensor, Tensor, dict[str, float]]:
        """The trainer's step on the batch: its loss, the float64 loss, and the stray of each tensor."""
        weights, before = trainer.weights(), trainer.state()
        before = {name: [tensor.clone() for tensor in own] for name, own in before.items()}
        expected, exact = _backward(self.exact, weights, batch)
        rounded = [_backward(self.rounded, weights, batch)[1]]
        rounded += [_backward(self.exact, self._off(weights), batch)[1] for _ in range(self.others)]
        with trainer.peak:
            loss = trainer.step(*batch).clone()
        after = trainer.state()
        of_tables = [by_name.pop(TABLES) for by_name in (before, after, exact)]
        strays = self._strays_of_tables(*of_tables, [gradients.pop(TABLES) for gradients in rounded])
        for name in exact:
            own = [gradients[name] for gradients in rounded]
            strays[name] = _share(self._outside(before[name], after[name], exact[name], own))
        return loss, expected, {name: stray.item() for name, stray in strays.items()}

    def _off(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights, those of the MLPs each off by up to TWO_ROUNDINGS of itself."""
        off = dict(weights)
        for name, weight in weights.items():
            if weight.dim() == 2 and name != TABLES:
                by = torch.rand(weight.shape, generator=self.random, dtype=torch.float64, device=weight.device)
                off[name] = weight * (1 + TWO_ROUNDINGS * (2 * by - 1))
        return off

    def _strays_of_tables(
        self, before: list[Tensor], after: list[Tensor], exact: Tensor, rounded: list[Tensor]
    ) -> dict[str, Tensor]:
        exact = exact.coalesce()
        rows, starts = exact.indices()[0], self.exact.sparse_arch.tables.starts
        states = [[tensor[rows] for tensor in state] for state in (before, after)]
        same = all(torch.equal(old.index_copy_(0, rows, new[rows]), new)
                   for old, new in zip(before, after, strict=True))
        strays = {"the rows that are not looked up": exact.values().new_tensor(0.0 if same else torch.inf)}
        eager, *others = rounded
        of_rounded = [self._as_eager_adds(states[0][0], rows, eager), *(other.coalesce().values() for other in others)]
        bounds, of_rows = [*torch.searchsorted(rows, starts).tolist(), len(rows)], [exact.values().new_zeros(1)]
        for table, (begin, end) in enumerate(pairwise(bounds)):
            old, new = ([tensor[begin:end] for tensor in state] for state in states)
            pairs = self._outside(
                old, new, exact.values()[begin:end], [gradient[begin:end] for gradient in of_rounded],
                self.rule is TableOptimizer.ROWWISE_ADAGRAD,
            )
            strays[f"table {table}"] = _share(pairs)
            outside, size = (tensor.sum(-1) for tensor in pairs[0])
            # A row that hardly moves beside the others may stray by more than it moves: that is rounding.
            of_rows.append(outside / size.clamp(min=0.01 * size.sum() / max(1, len(size))).clamp(min=1e-30))
        strays[ROW] = torch.cat(of_rows).amax()
        return strays

    def _as_eager_adds(self, weights: Tensor, rows: Tensor, gradient: Tensor) -> Tensor:
        """The gradients of these rows, with the error that they come to in eager's update. torch.optim's Adagrad sums
        a row's gradients first; its SGD adds one by one to the weight, and what is small beside that is lost."""
        if self.rule is not TableOptimizer.SGD:
            return gradient.coalesce().values()
        place = torch.searchsorted(rows, gradient._indices()[0])
        new = weights.index_add(0, place, gradient._values(), alpha=-self.rate)
        return (weights.double() - new) / self.rate

    def _outside(
        self, before: list[Tensor], after: list[Tensor], exact: Tensor, rounded: list[Tensor], row_wise: bool = False
    ) -> list[tuple[Tensor, Tensor]]:
        """What lies outside, and the update's size, for weights, and for their sums of squares if there are some."""
        error = 2 * torch.stack([(gradient - exact).abs().amax(-1, keepdim=True) for gradient in rounded]).amax(0)
        applied, pairs = self._applied(before, exact, error, row_wise), []
        for old, new, (low, right, high) in zip(before, after, applied, strict=True):
            outside = torch.maximum(low - new, new - high)
            outside -= ROUNDING * torch.maximum(old.abs(), new.abs())
            pairs.append((outside.clamp(min=0), (right - old).abs()))
        return pairs

    def _applied(
        self, before: list[Tensor], exact: Tensor, error: Tensor, row_wise: bool
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The rule's new weights, and sums of squares if it has some, in float64: the least, those of the exact
        gradient, and the most, of gradients that are up to `error` off."""
        weight, *sums = (tensor.double() for tensor in before)
        gradients = exact - error, exact, exact + error
        if not sums:
            most, right, least = (weight - self.rate * gradient for gradient in gradients)
            return [(least, right, most)]
        low, square, high = (gradient.square() for gradient in gradients)
        squares = torch.where(exact.abs() <= error, 0.0, torch.minimum(low, high)), square, torch.maximum(low, high)
        totals = [sums[0] + (squared.mean(-1) if row_wise else squared) for squared in squares]
        if row_wise:  # all elements of a row are divided by one root, between those of the least and the most sum
            steps = [g / self._root(total).unsqueeze(-1) for g in gradients for total in totals]
        else:  # g / (√(sum + g²) + ε) rises with g
            steps = [g / self._root(sums[0] + g.square()) for g in gradients]
        moved = weight - self.rate * torch.stack(steps)
        right = moved[len(moved) // 2]
        return [(moved.amin(0), right, moved.amax(0)), tuple(totals)]

    @staticmethod
    def _root(total: Tensor) -> Tensor:
        return total.sqrt() + ADAGRAD_EPS


def _share(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """A tensor's stray: of weights, and of their sums of squares if there are some, the larger."""
    return torch.stack([outside.sum() / size.sum().clamp(min=1e-30) for outside, size in pairs]).amax()


def _backward(model: DLRM, weights: dict[str, Tensor], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the batch with these weights, and the gradients."""
    labels, dense, sparse = batch
    model.load_state_dict(weights)
    model.zero_grad()
    dtype = model.over_arch.logit.weight.dtype
    loss = F.binary_cross_entropy_with_logits(model(dense.to(dtype), sparse), labels.to(dtype))
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}
