"""The optimizer of `FusedTables`: backward and update of the looked-up rows in one operation, in place.

    sgd               row -= lr g
    adagrad           sum[row] += g²;            row -= lr g / (sqrt(sum[row]) + eps)     sum [rows, D]
    rowwise_adagrad   sum[row] += mean of g²;    row -= lr g / (sqrt(sum[row]) + eps)     sum [rows]

g is the gradient of a row: those of all bags that named it, summed. An untouched row costs nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

import kernels
from model.config import TableOptimizer
from model.tables import FusedTables, LookUp

EPS = 1e-10  # as torch.optim.Adagrad's default


class TableUpdate:
    """What of torch.optim.Optimizer `Optimizers` needs; its state_dict is that of torch's SGD or Adagrad on the tables.

    The learning rate is param_groups[0]["lr"], a scalar on the device; so is the count of the steps. A captured step
    therefore follows whatever is written into the one, and counts with the other. backend: of the kernels.
    """

    def __init__(self, tables: FusedTables, rule: TableOptimizer, lr: float, backend: str = "auto"):
        if rule is TableOptimizer.ADAM:
            raise ValueError(f"rule: expected sgd, adagrad or rowwise_adagrad, got {rule}")
        self.tables, self.rule, self.backend = tables, rule, backend
        weight = tables.weight
        rate = torch.tensor(lr, device=weight.device)
        self.param_groups = [{"params": [weight], "lr": rate, "eps": EPS}]
        self.state: dict[str, Tensor] = {}
        if rule is not TableOptimizer.SGD:
            shape = weight.shape if rule is TableOptimizer.ADAGRAD else weight.shape[:1]
            self.state = {"step": torch.zeros((), device=weight.device), "sum": weight.new_zeros(shape)}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget what was looked up; there is no other gradient."""
        self.tables.looked_up.clear()

    @torch.no_grad()
    def step(self) -> None:
        """Update the rows once, with the gradients of all that was looked up; without any nothing is done, as
        torch.optim does nothing about a parameter whose grad is None."""
        looked_up = self.tables.looked_up.copy()
        self.tables.looked_up.clear()
        if not looked_up:
            return
        rows, offsets, gradient = joined(looked_up)
        weight, rate = self.tables.weight, self.param_groups[0]["lr"]
        batch = (self.tables.row_offsets, rows, gradient, rate, offsets)
        if self.rule is TableOptimizer.SGD:
            kernels.embedding_bags_sgd_(weight, *batch, backend=self.backend)
            return
        self.state["step"] += 1
        update = (
            kernels.embedding_bags_adagrad_
            if self.rule is TableOptimizer.ADAGRAD
            else kernels.embedding_bags_rowwise_adagrad_
        )
        update(weight, self.state["sum"], *batch, eps=EPS, backend=self.backend)

    def state_dict(self) -> dict:
        """As torch.optim.Optimizer's: {"state": {0: {"step", "sum"}}, "param_groups": [{…, "params": [0]}]}."""
        (group,) = self.param_groups
        return {"state": {0: dict(self.state)} if self.state else {}, "param_groups": [group | {"params": [0]}]}

    def load_state_dict(self, state: dict) -> None:
        """Copy the state into the tensors that are here: a captured step goes on reading them."""
        for name, tensor in self.state.items():
            tensor.copy_(state["state"][0][name])


def joined(looked_up: Sequence[LookUp]) -> LookUp:
    """All as one, so that a row that several name is updated once, with the sum. Nothing here waits for the device."""
    if len(looked_up) == 1:
        return looked_up[0]
    looked_up = [one for one in looked_up if len(one.gradient)] or looked_up[:1]
    rows, gradient = [one.rows for one in looked_up], torch.cat([one.gradient for one in looked_up])
    if all(one.offsets is None for one in looked_up):
        return LookUp(torch.cat(rows), None, gradient)
    # Offsets go feature by feature, and so must the ids: a stable sort by feature leaves them in their bags' order.
    features, lengths, of_ids = gradient.shape[1], [], []
    for one in looked_up:
        if one.offsets is None:
            lengths.append(torch.ones_like(one.rows.t()))
            of_ids.append(torch.arange(features, device=gradient.device).expand_as(one.rows))
        else:
            lengths.append(one.offsets.diff().view(features, -1))
            ends, positions = lengths[-1].sum(1).cumsum(0), torch.arange(len(one.rows), device=gradient.device)
            of_ids.append(torch.searchsorted(ends, positions, right=True))
    order = torch.cat([of_id.flatten() for of_id in of_ids]).sort(stable=True).indices
    ends = torch.cat(lengths, dim=1).flatten().cumsum(0)
    offsets = torch.cat([ends.new_zeros(1), ends])
    return LookUp(torch.cat([part.flatten() for part in rows])[order], offsets, gradient)
