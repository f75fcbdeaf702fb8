"""The embedding tables of a DLRM: a tensor each, all in one tensor, or all in one that fused kernels read and update.

    separate_tables   nn.Embedding each               dense gradients
    BatchedTables     one tensor, F.embedding         a sparse gradient
    FusedTables       one tensor, one kernel          none: `model.table_update` changes the rows where they lie

All draw the same weights from the same seed, and each loads the state_dict of the others.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels


class BatchedTables(nn.Module):
    """F embedding tables, one behind the other in one tensor: a look-up in all of them is one operation.

    So are its gradient and the optimizer's update, which matters where the gradients are sparse: torch takes some 25
    operations for the update of one tensor. FBGEMM's table-batched embeddings lie in memory in the same way.

    weight: [all rows, D]; table f begins at row starts[f].
    """

    def __init__(self, rows: Sequence[int], width: int):
        super().__init__()
        self.rows = tuple(rows)
        self.weight = nn.Parameter(torch.empty(sum(rows), width))
        # Not persistent: it follows from the rows.
        self.register_buffer("starts", torch.tensor([0, *rows[:-1]]).cumsum(0), persistent=False)
        for table in self.weight.detach().split(self.rows):
            _init_table(table)

    def __len__(self) -> int:
        return len(self.rows)

    def forward(self, rows: Tensor) -> Tensor:
        """rows int64 [B, F], of their tables → [B, F, D]."""
        return F.embedding(rows + self.starts, self.weight, sparse=True)

    def pooled(self, rows: Sequence[Tensor], offsets: Tensor) -> Tensor:
        """Sums of bags. rows: int64, for each table its own; offsets int64 [F B + 1]: bag f B + b is table f's.

        → [B, F, D].
        """
        moved = torch.cat([row + start for row, start in zip(rows, self.starts, strict=True)])
        sums = F.embedding_bag(moved, self.weight, offsets, mode="sum", include_last_offset=True, sparse=True)
        return sums.unflatten(0, (len(self), (len(offsets) - 1) // len(self))).transpose(0, 1)

    def extra_repr(self) -> str:
        return f"{len(self)} tables, {sum(self.rows)} rows, {self.weight.shape[1]}"


class LookUp(NamedTuple):
    """What a backward and update needs to know of a look-up: its arguments, and its result, whose `grad` is filled."""

    rows: Tensor
    offsets: Tensor | None
    embeddings: Tensor


class FusedTables(BatchedTables):
    """`BatchedTables` whose look-up is kernels.embedding_bags, and which autograd sees nothing of.

    weight requires no gradient, so that what is looked up is a leaf of autograd's graph. In training it is kept in
    `looked_up` with its rows: once `backward` has filled its gradient, `TableUpdate` updates the rows with that, and no
    gradient of a table ever exists. One look-up with gradients at a time; those under torch.no_grad do not count.
    """

    def __init__(self, rows: Sequence[int], width: int):
        super().__init__(rows, width)
        self.weight.requires_grad_(False)
        # Not persistent: it follows from the rows.
        self.register_buffer("row_offsets", torch.tensor([0, *rows]).cumsum(0), persistent=False)
        self.looked_up: LookUp | None = None

    def forward(self, rows: Tensor) -> Tensor:
        """rows int64 [B, F], of their tables → [B, F, D]."""
        if rows.is_meta:  # shapes alone: the kernel would check ids that are not there
            return super().forward(rows)
        return self._look_up(rows, None)

    def pooled(self, rows: Sequence[Tensor], offsets: Tensor) -> Tensor:
        """As `BatchedTables.pooled`."""
        return self._look_up(torch.cat(list(rows)), offsets)

    def _look_up(self, rows: Tensor, offsets: Tensor | None) -> Tensor:
        if self.looked_up is not None and self.looked_up.embeddings.grad is not None:
            raise RuntimeError("tables: a look-up's gradient waits for its update: step, or zero_grad, before the next")
        with torch.autocast(rows.device.type, enabled=False):  # the rows are float32 in each precision
            embeddings = kernels.embedding_bags(self.weight, self.row_offsets, rows, offsets)
        if self.training and torch.is_grad_enabled():
            embeddings.requires_grad_()
            self.looked_up = LookUp(rows, offsets, embeddings)
        return embeddings


def separate_tables(rows: Sequence[int], width: int) -> nn.ModuleList:
    """An nn.Embedding a table, with dense gradients."""
    tables = nn.ModuleList(nn.utils.skip_init(nn.Embedding, number, width) for number in rows)
    for table in tables:
        _init_table(table.weight)
    return tables


def load_either_layout(module: nn.Module, state: dict, prefix: str, *_) -> None:
    """A load_state_dict hook of a module with `tables`: a state_dict of the other layout is brought into this one."""
    joined, tables = f"{prefix}tables.weight", module.tables
    separate = [f"{prefix}tables.{table}.weight" for table in range(len(tables))]
    if isinstance(tables, BatchedTables):
        if joined not in state and all(name in state for name in separate):
            state[joined] = torch.cat([state.pop(name) for name in separate])
    elif joined in state and len(state[joined]) == sum(table.num_embeddings for table in tables):
        parts = state.pop(joined).split([table.num_embeddings for table in tables])
        state.update(zip(separate, parts, strict=True))


def _init_table(weight: Tensor) -> None:
    bound = 1 / math.sqrt(len(weight))
    nn.init.uniform_(weight, -bound, bound)
