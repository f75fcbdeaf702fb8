"""EmbeddingBags: F tables as a module, looked up and pooled in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .op import embedding_bags

MODES = ("sum", "mean", "max")


class EmbeddingBags(nn.Module):
    """What F modules nn.EmbeddingBag are, in one parameter and by one call of `embedding_bags`.

    Args:
        num_embeddings: the rows of each table; 0 for a table without any.
        embedding_dim: D, of all tables.
        mode: sum | mean | max.
        padding_idx: an id of every table that stands for nothing: its rows begin as zeros and have no gradient.
        out_of_range: error | zero | count, what becomes of an id that its table does not have: see `embedding_bags`.
        backend: as of `embedding_bags`. "auto" is eager wherever no kernel can run.
        device, dtype: of weight; float32, float16, bfloat16 or float64.

    weight: [all rows, D], table behind table, drawn from N(0, 1) as nn.EmbeddingBag's. Its gradient is dense, as large
    as the tables; `embedding_bags_sgd_` and its like update them without one. row_offsets: int64 [F + 1], where each
    begins.

    Raises ValueError, naming the argument.
    """

    def __init__(
        self, num_embeddings: Sequence[int], embedding_dim: int, mode: str = "sum", *, padding_idx: int | None = None,
        out_of_range: str = "error", backend: str = "auto", device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        rows = list(num_embeddings)
        if not rows or min(rows) < 0:
            raise ValueError(f"EmbeddingBags: num_embeddings must be the rows of each table, 0 or more; got {rows}")
        if embedding_dim < 0:
            raise ValueError(f"EmbeddingBags: embedding_dim must not be negative; got {embedding_dim}")
        if mode not in MODES:
            raise ValueError(f"EmbeddingBags: mode must be one of {', '.join(MODES)}; got {mode!r}")
        self.num_embeddings, self.embedding_dim, self.mode = rows, embedding_dim, mode
        self.padding_idx, self.out_of_range, self.backend = padding_idx, out_of_range, backend
        self.weight = nn.Parameter(torch.empty(sum(rows), embedding_dim, device=device, dtype=dtype))
        # Not persistent: it follows from num_embeddings.
        row_offsets = torch.tensor([0, *rows], device=device).cumsum(0)
        self.register_buffer("row_offsets", row_offsets, persistent=False)
        self.reset_parameters()

    def _apply(self, fn, recurse: bool = True) -> EmbeddingBags:
        super()._apply(fn, recurse)
        # to_empty, and so nn.utils.skip_init, leaves it unwritten, and no state_dict has it.
        self.row_offsets.copy_(torch.tensor([0, *self.num_embeddings]).cumsum(0))
        return self

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        nn.init.normal_(self.weight)
        for table in self.weight.split(self.num_embeddings):
            if self.padding_idx is not None and 0 <= self.padding_idx < len(table):
                table[self.padding_idx].zero_()

    def forward(
        self, indices: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """→ [B, F, D], contiguous, in weight's dtype, under torch.autocast too.

        indices: int32 or int64 ids, of their tables: [B, F], one id a bag; or, with offsets [F B + 1], all ids [N], bag
        f B + b from offsets[f B + b] to offsets[f B + b + 1]. per_sample_weights: in their shape, for a sum; of another
        dtype than weight's they are cast to it, for which torch.autocast would cast the tables.
        """
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.to(self.weight.dtype)
        return embedding_bags(
            self.weight, self.row_offsets, indices, offsets, self.mode, per_sample_weights, self.padding_idx,
            self.out_of_range, backend=self.backend,
        )

    def extra_repr(self) -> str:
        tables = ", ".join(map(str, self.num_embeddings))
        return f"[{tables}], {self.embedding_dim}, mode={self.mode!r}"
