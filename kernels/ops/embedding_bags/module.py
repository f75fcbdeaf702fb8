"""EmbeddingBags: F tables as a module, looked up and pooled in one launch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...derived import Derived
from ...dispatch import checks
from ...dtypes import FLOATING
from . import tables as given_tables
from .op import embedding_bags

MODES = ("sum", "mean", "max")
BACKENDS = ("auto", "eager", "triton", "cuda")


class EmbeddingBags(Derived):
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

    A model's own tables become one by `from_tables`, and its own checkpoint loads: where a state_dict has no `weight`
    but `0.weight`, `1.weight`, …, as an nn.ModuleList of the tables in this module's place had them, these are the
    tables. `state_dict_of_tables` gives them back.

    Raises TypeError or ValueError, naming the argument.
    """

    def __init__(
        self, num_embeddings: Sequence[int], embedding_dim: int, mode: str = "sum", *, padding_idx: int | None = None,
        out_of_range: str = "error", backend: str = "auto", device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        op = type(self).__name__
        if isinstance(num_embeddings, nn.Module):
            raise TypeError(
                f"{op}: num_embeddings must be the rows of each table; got a module, {type(num_embeddings).__name__}: "
                f"{op}.from_tables(…) takes tables"
            )
        rows = checks.integers(op, "num_embeddings", num_embeddings)
        if not rows or min(rows) < 0:
            raise ValueError(f"{op}: num_embeddings must be the rows of each table, 0 or more; got {rows}")
        if isinstance(embedding_dim, Sequence):
            raise TypeError(f"{op}: embedding_dim must be one integer, of all tables; got {embedding_dim!r}")
        embedding_dim = checks.integer(op, "embedding_dim", embedding_dim)
        if embedding_dim < 0:
            raise ValueError(f"{op}: embedding_dim must not be negative; got {embedding_dim}")
        checks.is_one_of(op, "mode", mode, MODES)
        checks.is_one_of(op, "out_of_range", out_of_range, ("error", "zero", "count"))
        checks.is_one_of(op, "backend", backend, BACKENDS)
        if padding_idx is not None:
            if isinstance(padding_idx, Sequence):
                raise TypeError(f"{op}: padding_idx must be one id, of every table, or None; got {padding_idx!r}")
            if (padding_idx := checks.integer(op, "padding_idx", padding_idx)) < -1:
                raise ValueError(f"{op}: padding_idx must be an id, or -1 or None for none; got {padding_idx}")
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not isinstance(dtype, torch.dtype) or dtype not in FLOATING:
            expected = ", ".join(map(checks.plain, FLOATING))
            raise TypeError(f"{op}: dtype must be one of {expected}; got {checks.plain(dtype)}")
        self.num_embeddings, self.embedding_dim, self.mode = rows, embedding_dim, mode
        self.padding_idx, self.out_of_range, self.backend = padding_idx, out_of_range, backend
        device = checks.a_device(op, "device", device)
        self.weight = nn.Parameter(torch.empty(sum(rows), embedding_dim, device=device, dtype=dtype))
        self.derive("weight", row_offsets=[0, *itertools.accumulate(rows)])
        self.reset_parameters()

    @classmethod
    def from_tables(
        cls, tables: Sequence[nn.Embedding | nn.EmbeddingBag | Tensor], *, mode: str | None = None,
        padding_idx: int | None = None, out_of_range: str = "error", backend: str = "auto",
    ) -> EmbeddingBags:
        """One module of a model's tables: modules nn.Embedding and nn.EmbeddingBag, or tensors [R_f, D].

        Args:
            tables: of one D, dtype and device. They are copied, and nothing is shared; without a copy
                `embedding_bags_apart` looks up in tables that lie apart.
            mode: default: that of the nn.EmbeddingBag among them; "sum" of others.
            padding_idx: default: that of the modules among them. An nn.Embedding gives this row, which must therefore
                be zeros, as it is by default: bags leave it out.
            out_of_range, backend: as EmbeddingBags takes them.

        Taken over: weights, mode, padding_idx and requires_grad, in which all tables must agree. include_last_offset
        does not count: `forward` takes other offsets. sparse, max_norm and scale_grad_by_freq are refused, and so are a
        table that stands for two features, which must stay one, and subclasses, which may compute otherwise.

        Raises TypeError or ValueError, naming the table, what is expected and what came.
        """
        parsed = given_tables.read(f"{cls.__name__}.from_tables", tables, mode, padding_idx)
        weight, first = nn.Parameter(parsed.joined(), requires_grad=parsed.requires_grad), parsed.weights[0]
        module = cls(
            [len(table) for table in parsed.weights], first.shape[1], parsed.mode, padding_idx=parsed.padding_idx,
            out_of_range=out_of_range, backend=backend, device="meta", dtype=first.dtype,
        )
        module.weight = weight
        module._write_derived()
        return module

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        nn.init.normal_(self.weight)
        for table in self.weight.split(self.num_embeddings):
            if self.padding_idx is not None and 0 <= self.padding_idx < len(table):
                table[self.padding_idx].zero_()

    def state_dict_of_tables(self, prefix: str = "") -> dict[str, Tensor]:
        """{f"{prefix}{f}.weight": table f, [R_f, D]}: what an nn.ModuleList of the tables would have, for a model that
        still has one. The tensors are views of weight, as a state_dict's are."""
        parts = self.weight.detach().split(self.num_embeddings)
        return {f"{prefix}{f}.weight": part for f, part in enumerate(parts)}

    @torch.no_grad()
    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        own = self.state_dict_of_tables(prefix)
        if prefix + "weight" not in state_dict and not own.keys().isdisjoint(state_dict):
            entries = {name: state_dict.pop(name) for name in own if name in state_dict}
            absent = [name for name in own if name not in entries]
            wrong = [name for name in entries if getattr(entries[name], "shape", None) != own[name].shape]
            wrong += [name for name in entries if name not in wrong and not isinstance(entries[name], Tensor)]
            errors += [
                f"size mismatch for {name}: the checkpoint has {_described(entries[name])}, this table of "
                f"{type(self).__name__} is a tensor of shape {list(own[name].shape)}"
                for name in wrong
            ]
            missing += absent
            state_dict[prefix + "weight"] = self.weight
            if not (self.weight.is_meta or metadata.get("assign_to_params_buffers", False)):
                for name in entries.keys() - {*wrong}:  # table by table, for which no memory is needed
                    own[name].copy_(entries[name])
            elif not (wrong or absent):
                state_dict[prefix + "weight"] = torch.cat([*entries.values()])
            else:
                errors.append(f"{prefix}weight is on the device meta, or to be assigned: all its tables must be there")
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    def forward(
        self, indices: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """→ [B, F, D], contiguous, in weight's dtype, under torch.autocast too.

        indices: int32 or int64 ids, of their tables: [B, F], one id a bag; or, with offsets [F B + 1], all ids [N], bag
        f B + b from offsets[f B + b] to offsets[f B + b + 1]. per_sample_weights: in their shape, for a sum; of another
        dtype than weight's they are cast to it, for which torch.autocast would cast the tables.
        """
        if isinstance(per_sample_weights, Tensor):
            per_sample_weights = per_sample_weights.to(self.weight.dtype)
        return embedding_bags(
            self.weight, self.row_offsets, indices, offsets, self.mode, per_sample_weights, self.padding_idx,
            self.out_of_range, backend=self.backend,
        )

    def extra_repr(self) -> str:
        tables = ", ".join(map(str, self.num_embeddings))
        return f"[{tables}], {self.embedding_dim}, mode={self.mode!r}"


def _described(value: object) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
