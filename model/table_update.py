"""The optimizer of `FusedTables`: backward and update of the looked-up rows in one operation, in place.

    sgd               row -= lr g
    adagrad           sum[row] += g²;            row -= lr g / (sqrt(sum[row]) + eps)     sum [rows, D]
    rowwise_adagrad   sum[row] += mean of g²;    row -= lr g / (sqrt(sum[row]) + eps)     sum [rows]

g is the gradient of a row: those of all bags that named it, summed. An untouched row costs nothing.
"""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad

import kernels
from model.config import TableOptimizer
from model.tables import FusedTables, LookUp, versions_of

WITHOUT = ("momentum", "weight_decay", "lr_decay", "maximize")  # of what torch's SGD and Adagrad can do


class TableUpdate:
    """What of torch.optim.Optimizer `Optimizers` needs; its state_dict is that of torch's SGD or Adagrad on the tables:
    each loads the other's. (Row-wise Adagrad's `sum` has a number a row, and is no other optimizer's.)

    The learning rate is param_groups[0]["lr"], a scalar on the device, or what is put there; so is the count of the
    steps. A captured step therefore follows whatever is written into the one, and counts with the other. eps is the
    group's too. Its other options are torch's defaults: those in WITHOUT are a ValueError where they are not, and the
    rest say how torch computes the same. backend: of the kernels. deterministic: False, of sgd alone: what several bags
    add to a row is added in any order, which is faster on a GPU, and no two runs end with the same bits.
    """

    def __init__(
        self, tables: FusedTables, rule: TableOptimizer, lr: float, backend: str = "auto", deterministic: bool = True
    ):
        if not deterministic and rule is not TableOptimizer.SGD:
            raise ValueError(f"deterministic: expected True of {rule}, got False")
        if rule is TableOptimizer.ADAM:
            raise ValueError(f"rule: expected sgd, adagrad or rowwise_adagrad, got {rule}")
        self.tables, self.rule, self.backend, self.deterministic = tables, rule, backend, deterministic
        tables.takes_sorted = deterministic
        weight = tables.weight
        kind = SGD if rule is TableOptimizer.SGD else Adagrad
        options = kind([nn.Parameter(torch.empty(0))], lr=lr).defaults
        self.param_groups = [{"params": [weight], **options, "lr": torch.tensor(lr, device=weight.device)}]
        self.state: dict[str, Tensor] = {}
        if rule is not TableOptimizer.SGD:
            shape = weight.shape if rule is TableOptimizer.ADAGRAD else weight.shape[:1]
            self.state = {"step": torch.zeros((), device=weight.device), "sum": weight.new_zeros(shape)}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget what was looked up; there is no other gradient."""
        self.tables.looked_up.clear()
        self.tables.gradient_event = None
        self.tables.branches.join()
        self.tables.in_eval = False

    @torch.no_grad()
    def step(self) -> None:
        """Update the rows once, with the gradients of all that was looked up; without any nothing is done, as
        torch.optim does nothing about a parameter whose grad is None. But where all was looked up in eval(), which
        keeps no gradient of a table, it warns.

        Raises RuntimeError if ids or offsets were written to since: the gradients are of other rows.
        """
        (group,) = self.param_groups
        _refuse_what_is_missing(group)
        looked_up = self.tables.looked_up.copy()
        del self.tables.looked_up[: len(looked_up)]  # what another thread's backward adds meanwhile stays
        in_eval, self.tables.in_eval = self.tables.in_eval, False
        if not looked_up:
            if in_eval:
                warnings.warn(
                    "FusedTables: the rows were looked up in eval(), so the step leaves the tables as they are; to "
                    "train them beside a model in eval(), call train() of the tables alone",
                    stacklevel=3,
                )
            return
        if any(one.versions != versions_of(one.rows, one.offsets) for one in looked_up):
            raise RuntimeError("FusedTables: ids or offsets were written to between their look-up and the step")
        with self.tables.updating(looked_up):
            self._update(joined(looked_up), group)

    def _update(self, one: LookUp, group: dict) -> None:
        weight, how = self.tables.weight, {"sorted_ids": one.sorted_ids, "backend": self.backend}
        batch = (self.tables.row_offsets, one.rows, one.gradient, group["lr"], one.offsets)
        if self.rule is TableOptimizer.SGD:
            kernels.embedding_bags_sgd_(weight, *batch, **how, deterministic=self.deterministic)
            return
        self.state["step"] += 1
        update = (
            kernels.embedding_bags_adagrad_
            if self.rule is TableOptimizer.ADAGRAD
            else kernels.embedding_bags_rowwise_adagrad_
        )
        update(weight, self.state["sum"], *batch, eps=group["eps"], **how)

    def state_dict(self) -> dict:
        """As torch.optim.Optimizer's: {"state": {0: {"step", "sum"}}, "param_groups": [{…, "params": [0]}]}.

        The rate is a number, for which the device is waited for.
        """
        (group,) = self.param_groups
        group = group | {"params": [0], "lr": float(group["lr"])}
        return {"state": {0: dict(self.state)} if self.state else {}, "param_groups": [group]}

    def load_state_dict(self, state: dict) -> None:
        """Copy state and rate into the tensors that are here: a captured step goes on reading them.

        Raises ValueError, before anything is copied, for a state of another rule or shape, a group that asks for what
        the update does not do, or a rate or eps that is none.
        """
        (ours,), (theirs,) = self.param_groups, state["param_groups"]
        _refuse_what_is_missing(theirs)
        values = state["state"].get(theirs["params"][0], {})
        values = {name: value for name, value in values.items() if value is not None}
        if values.keys() != self.state.keys():
            expected, got = (", ".join(names) or "none" for names in (self.state, values))
            raise ValueError(f"state: expected {expected} of {self.rule}, got {got}")
        for name, tensor in self.state.items():
            if (shape := list(torch.as_tensor(values[name]).shape)) != list(tensor.shape):
                raise ValueError(f"{name}: expected shape {list(tensor.shape)}, got {shape}")
        for option in ("lr", "eps") if "eps" in ours else ("lr",):
            value = theirs.get(option)
            if value is None or torch.as_tensor(value).numel() != 1 or not 0 <= float(value) < math.inf:
                raise ValueError(f"{option}: expected a number from 0 on, got {value}")
        for name, tensor in self.state.items():
            tensor.copy_(torch.as_tensor(values[name]))
        if isinstance(ours["lr"], Tensor):
            ours["lr"].fill_(theirs["lr"])
        else:
            ours["lr"] = theirs["lr"]
        if "eps" in ours:
            ours["eps"] = theirs["eps"]


def _refuse_what_is_missing(group: dict) -> None:
    for option in WITHOUT:
        if group.get(option):
            raise ValueError(f"{option}: the update of FusedTables has none; got {group[option]}")


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
