"""The optimizer of `FusedTables`: backward and update of the looked-up rows in one operation, in place.

    sgd               row -= lr g
    adagrad           sum[row] += g²;            row -= lr g / (sqrt(sum[row]) + eps)     sum [rows, D]
    rowwise_adagrad   sum[row] += mean of g²;    row -= lr g / (sqrt(sum[row]) + eps)     sum [rows]

g is the gradient of a row: those of all bags that named it, summed. An untouched row costs nothing.
"""

import torch
from torch import Tensor

import kernels
from model.config import TableOptimizer
from model.tables import FusedTables

EPS = 1e-10  # as torch.optim.Adagrad's default


class TableUpdate:
    """What of torch.optim.Optimizer `Optimizers` needs; its state_dict is that of torch's SGD or Adagrad on the tables.

    The learning rate is param_groups[0]["lr"], a scalar on the device; so is the count of the steps. A captured step
    therefore follows whatever is written into the one, and counts with the other.
    """

    def __init__(self, tables: FusedTables, rule: TableOptimizer, lr: float):
        if rule is TableOptimizer.ADAM:
            raise ValueError(f"rule: expected sgd, adagrad or rowwise_adagrad, got {rule}")
        self.tables, self.rule = tables, rule
        weight = tables.weight
        rate = torch.tensor(lr, device=weight.device)
        self.param_groups = [{"params": [weight], "lr": rate, "eps": EPS}]
        self.state: dict[str, Tensor] = {}
        if rule is not TableOptimizer.SGD:
            shape = weight.shape if rule is TableOptimizer.ADAGRAD else weight.shape[:1]
            self.state = {"step": torch.zeros((), device=weight.device), "sum": weight.new_zeros(shape)}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget what was looked up; there is no other gradient."""
        self.tables.looked_up = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the rows with the gradient of what was looked up; without one nothing is done."""
        looked_up, self.tables.looked_up = self.tables.looked_up, None
        if looked_up is None or looked_up.embeddings.grad is None:
            return
        weight, row_offsets = self.tables.weight, self.tables.row_offsets
        batch = (row_offsets, looked_up.rows, looked_up.embeddings.grad, self.param_groups[0]["lr"], looked_up.offsets)
        if self.rule is TableOptimizer.SGD:
            kernels.embedding_bags_sgd_(weight, *batch)
            return
        self.state["step"] += 1
        update = (
            kernels.embedding_bags_adagrad_
            if self.rule is TableOptimizer.ADAGRAD
            else kernels.embedding_bags_rowwise_adagrad_
        )
        update(weight, self.state["sum"], *batch, eps=EPS)

    def state_dict(self) -> dict:
        """As torch.optim.Optimizer's: {"state": {0: {"step", "sum"}}, "param_groups": [{…, "params": [0]}]}."""
        (group,) = self.param_groups
        return {"state": {0: dict(self.state)} if self.state else {}, "param_groups": [group | {"params": [0]}]}

    def load_state_dict(self, state: dict) -> None:
        """Copy the state into the tensors that are here: a captured step goes on reading them."""
        for name, tensor in self.state.items():
            tensor.copy_(state["state"][0][name])
