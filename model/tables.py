"""The embedding tables of a DLRM: a tensor each, all in one tensor, or all in one that fused kernels read and update.

    separate_tables   nn.Embedding each               dense gradients
    BatchedTables     one tensor, F.embedding         a sparse gradient
    FusedTables       one tensor, one kernel          none: `model.table_update` changes the rows where they lie

All draw the same weights from the same seed, and each loads the state_dict of the others.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

import kernels
from kernels.ops.embedding_bags_sort.op import beside, embedding_bags_sort
from model.branches import Branches


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
        self.draw()

    def draw(self) -> None:
        """Give the tables their initial weights."""
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
    """What an update needs to know of a look-up: its arguments, and the gradient of its result, [B, F, D]; versions:
    the arguments' when they were looked up; sorted_ids: of embedding_bags_sort, where they were sorted already."""

    rows: Tensor
    offsets: Tensor | None
    gradient: Tensor
    versions: tuple[int, ...] = ()
    sorted_ids: tuple[Tensor, ...] | None = None


def versions_of(*tensors: Tensor | None) -> tuple[int, ...]:
    """How often each was written to in place, where PyTorch counts it."""
    return tuple(one._version for one in tensors if one is not None and not one.is_inference())


class FusedTables(BatchedTables):
    """`BatchedTables` whose look-up is kernels.embedding_bags, or with what follows kernels.lookup_interact, and which
    autograd sees nothing of.

    weight requires no gradient, so that what is looked up is a leaf of autograd's graph: no gradient of a table ever
    exists. In training a backward adds each look-up whose result it gives a gradient to `looked_up`, and
    `TableUpdate.step` updates the rows with all of them at once. So a step may have several look-ups (two towers),
    several backwards (accumulation), and look-ups that activation checkpointing does twice. What no backward reaches,
    and what is looked up under torch.no_grad or in eval(), is not there; a step after look-ups in eval() alone warns.
    Until `TableUpdate`'s step or zero_grad (a module's own knows nothing of it) each backward keeps a batch's gradient
    more. Ids and offsets must stay as they are until then; so must weight between `interact` and its backward.

    One process: DistributedDataParallel averages the gradients that parameters have, and sees none of these, so that
    each process would train tables of its own. A look-up in training raises where torch.distributed has several; those
    whose look-ups are exchanged are model.sharding's.
    """

    out_of_range = "error"  # what becomes of an id that its table does not have: see kernels.embedding_bags
    is_exchanged = False  # whether the processes exchange look-ups and gradients
    sorts_ahead = False  # whether ids are sorted at their look-up, in a capture on a branch; `sorting_ahead` sets it
    takes_sorted = True  # whether the update wants them so; `TableUpdate` sets it
    updates_beside = False  # whether the update is a branch of a capture, which begins at the last gradient

    def __init__(self, rows: Sequence[int], width: int):
        super().__init__(rows, width)
        self.weight.requires_grad_(False)
        # Not persistent: it follows from the rows.
        self.register_buffer("row_offsets", torch.tensor([0, *rows]).cumsum(0), persistent=False)
        self.looked_up: list[LookUp] = []
        self.branches = Branches()
        self.gradient_event: torch.cuda.Event | None = None  # of the last gradient, where the update is a branch
        self.in_eval = False  # whether some were looked up in eval() where a gradient is recorded, since the last step

    def forward(self, rows: Tensor) -> Tensor:
        """rows int64 [B, F], of their tables → [B, F, D]."""
        return self._look_up(rows, None)

    def pooled(self, rows: Sequence[Tensor], offsets: Tensor) -> Tensor:
        """As `BatchedTables.pooled`."""
        return self._look_up(torch.cat(list(rows)), offsets)

    def interact(
        self, dense: Tensor, rows: Tensor, offsets: Tensor | None, pad_to: int, precision: str, backend: str,
        known: tuple[Tensor] | None = None, kind: str = "dot",
    ) -> Tensor:
        """kernels.lookup_interact of dense [B, D], in the weight's dtype, and what is looked up, which is not in memory
        then. rows: int64 [B, F], or with offsets [N]. A backward looks up again; the weight must be as it was. known:
        the result of a call in training, where another kernel has computed it."""
        if self._trains():
            return self._interact_in_training(dense, rows, offsets, pad_to, precision, kind, backend, known)
        arguments = dense, self.weight, self.row_offsets, rows, offsets, pad_to, precision, kind
        return kernels.lookup_interact(*arguments, backend=backend)

    @torch.compiler.disable  # as _expect_gradient
    def _interact_in_training(self, dense: Tensor, rows: Tensor, offsets: Tensor | None, *how: object) -> Tensor:
        sorted_ids = self._sort_ahead(rows, offsets) if self.sorts_ahead and self.weight.is_cuda else None
        # What autograd takes for the vectors: a number that is seen as so many.
        vectors = self.weight.new_empty(()).expand(len(dense), len(self), self.weight.shape[1])
        self._expect_gradient(rows, offsets, vectors, sorted_ids)
        return _Interaction.apply(dense, vectors, self.weight, self.row_offsets, rows, offsets, *how)

    def _look_up(self, rows: Tensor, offsets: Tensor | None) -> Tensor:
        trains = self._trains()
        # In this order: a compiled graph is not to be guarded by what holds in a captured step alone.
        sorts = trains and not torch.compiler.is_compiling() and self.sorts_ahead and self.weight.is_cuda
        sorted_ids = self._sort_ahead(rows, offsets) if sorts else None
        embeddings = kernels.embedding_bags(
            self.weight, self.row_offsets, rows, offsets, out_of_range=self.out_of_range
        )
        if trains:
            self._expect_gradient(rows, offsets, embeddings, sorted_ids)
        return embeddings

    def _trains(self) -> bool:
        """Whether a look-up's gradient is to be kept; one in eval() is noted where it would be."""
        if not self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.in_eval = True
        return self.training and torch.is_grad_enabled()

    @torch.compiler.disable  # a compiled graph would return what it is to keep
    def _expect_gradient(
        self, rows: Tensor, offsets: Tensor | None, embeddings: Tensor, sorted_ids: tuple[Tensor, ...] | None
    ) -> None:
        several = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        if several and not self.is_exchanged:
            raise RuntimeError(
                f"FusedTables: trains in one process, and torch.distributed has {distributed.get_world_size()}: nobody "
                "would reduce the tables' gradients; use kernels=eager with sparse_gradients=False"
            )

        if self.weight.requires_grad:
            raise RuntimeError(
                "FusedTables: weight requires a gradient, and none comes to it: call weight.requires_grad_(False); "
                "TableUpdate trains it all the same"
            )

        versions = versions_of(rows, offsets)

        def keep(embeddings: Tensor) -> None:
            self.looked_up.append(LookUp(rows, offsets, embeddings.grad, versions, sorted_ids))
            embeddings.grad = None
            if self.updates_beside and torch.cuda.is_current_stream_capturing():
                self.gradient_event = torch.cuda.current_stream().record_event()

        embeddings.requires_grad_().register_post_accumulate_grad_hook(keep)

    def _sort_ahead(self, rows: Tensor, offsets: Tensor | None) -> tuple[Tensor, ...]:
        """The ids in the order of the update, which hangs on them alone. While a graph is captured that is a branch of
        it: it runs where forward and backward, of a higher priority (`GraphedStep`), leave multiprocessors free."""
        if not torch.cuda.is_current_stream_capturing():
            return self._sorted(rows, offsets)
        with self.branches.begun_at(torch.cuda.current_stream().record_event()):
            return self._sorted(rows, offsets)

    def _sorted(self, rows: Tensor, offsets: Tensor | None) -> tuple[Tensor, ...]:
        backend = beside("cuda", self.weight)
        return embedding_bags_sort(rows, self.row_offsets, offsets, len(self.weight), backend=backend)

    @contextmanager
    def updating(self, looked_up: object) -> Iterator[None]:
        """Within it the current stream has the ids sorted, and all gradients. Where the update is a branch that is one
        of its own, which waits for nothing behind the last gradient: gradients of the MLPs, and their update.
        looked_up: what the update reads."""
        event, self.gradient_event = self.gradient_event, None
        with self.branches.begun_at(event, looked_up) if event else nullcontext():
            self.branches.join()
            yield


class _Interaction(torch.autograd.Function):
    """kernels.lookup_interact, whose gradients are those of dense and of the vectors, [B, F, D]: the second argument
    stands for these. Ids are kept as they are: what was made in inference_mode cannot be saved. So are tables, of which
    a hook of saved tensors (torch.autograd.graph.save_on_cpu) would make a copy."""

    @staticmethod
    def forward(
        ctx, dense: Tensor, vectors: Tensor, weight: Tensor, row_offsets: Tensor, rows: Tensor, offsets: Tensor | None,
        pad_to: int, precision: str, kind: str, backend: str, known: tuple[Tensor] | None,
    ) -> Tensor:
        ctx.save_for_backward(dense)
        ctx.looked_up, ctx.how = (weight, row_offsets, rows, offsets), (precision, kind, backend)
        ctx.versions = versions_of(*ctx.looked_up)
        if known:
            return known[0]
        arguments = dense, weight, row_offsets, rows, offsets, pad_to, precision, kind
        return kernels.lookup_interact(*arguments, backend=backend)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if versions_of(*ctx.looked_up) != ctx.versions:
            raise RuntimeError(
                "FusedTables: tables, ids or offsets were written to between their look-up and its backward"
            )
        precision, kind, backend = ctx.how
        dense, vectors = kernels.lookup_interact_gradients(
            gradient, *ctx.saved_tensors, *ctx.looked_up, precision, kind, backend=backend
        )
        return dense, vectors, *[None] * 9


@contextmanager
def sorting_ahead(model: nn.Module, updates_beside: bool = False) -> Iterator[None]:
    """Within it the model's FusedTables sort ids when they look them up. What is captured in it ends as one graph,
    whether an update took them or not. updates_beside: an update that is captured is a branch, too; between it and the
    next `zero_grad`, or the end, nobody may look up in the tables."""
    tables = [module for module in model.modules() if isinstance(module, FusedTables)]
    with ExitStack() as joins:
        for one in tables:
            joins.callback(one.branches.join)
            one.sorts_ahead, one.updates_beside = one.takes_sorted, updates_beside
        try:
            yield
        finally:
            for one in tables:
                one.sorts_ahead = one.updates_beside = False
                one.gradient_event = None


def separate_tables(rows: Sequence[int], width: int) -> nn.ModuleList:
    """An nn.Embedding a table, with dense gradients."""
    # skip_init would make them on the CPU, and draw from its generator, whatever device is the default.
    device = torch.get_default_device()
    tables = nn.ModuleList(nn.utils.skip_init(nn.Embedding, number, width, device=device) for number in rows)
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


def bound_of(rows: int) -> float:
    """The initial weights of a table with so many rows are uniform between minus and plus this."""
    return 1 / math.sqrt(rows)


def _init_table(weight: Tensor) -> None:
    bound = bound_of(len(weight))
    nn.init.uniform_(weight, -bound, bound)
