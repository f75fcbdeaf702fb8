"""embedding_bags: the declaration, and the public functions.

A gradient takes two ops: embedding_bags_sort, which orders the ids by the rows that they name, and the backward here,
which adds up what lies together. So CUDA's sort, or PyTorch's, serves Triton, whose kernels sort within a block only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...dispatch.op import KeptShape, Op, Prepared, SavedBy, like
from ..embedding_bags_sort.op import beside, embedding_bags_sort
from . import choice, eager, reported


def check(op: str, *arguments) -> None:
    """Raise for what no shape says; of values the kernels take care."""
    _, _, indices, offsets, mode, weights, padding_idx, _ = arguments
    check_bags(op, indices, offsets)
    if not isinstance(padding_idx, int) or padding_idx < -1:
        raise ValueError(f"{op}: padding_idx must be an id, or -1 or None for none; got {padding_idx!r}")
    if weights is not None and mode != "sum":
        raise ValueError(f"{op}: mode must be sum, since there are per_sample_weights; got {mode}")


def check_bags(op: str, indices: Tensor, offsets: Tensor | None) -> None:
    """Raise where offsets of no bag come with ids."""
    if offsets is not None and offsets.shape[0] == 1 and indices.numel():
        raise ValueError(f"{op}: offsets must end at {indices.numel()}, the number of ids; they say of no bag")


def _output(named: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    # len() would make numbers of sizes that torch.compile keeps as symbols.
    tables, features = named["tables"], named["row_offsets"].shape[0] - 1
    offsets, indices = named["offsets"], named["indices"]
    rows = indices.shape[0] if offsets is None else (offsets.shape[0] - 1) // max(features, 1)
    return (rows, features, tables.shape[1]), tables.dtype


def _sorted(backend: str, named: Mapping[str, object]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return embedding_bags_sort(
        named["indices"], named["row_offsets"], named["offsets"], named["tables_shape"][0], named["padding_idx"],
        named["mode"] == "mean", backend=beside(backend, named["indices"]),
    )


IDS = ("row_offsets", "indices", "offsets", "per_sample_weights")
OP = Op(
    "embedding_bags",
    "(Tensor tables, Tensor row_offsets, Ragged indices, Tensor? offsets, str mode, Ragged? per_sample_weights, "
    "int padding_idx, str out_of_range) -> (Tensor out, Report report)",
    shapes="tables [R, D]: floating; row_offsets [F + 1]: int64; indices [B, F] | [N] with offsets: integer; "
    "offsets [F · B + 1]: integer; mode: sum | mean | max; per_sample_weights [B, F] | [N] with offsets: tables; "
    "out_of_range: error | zero | count",
    hints={"offsets": "the number of ids comes last, as in nn.EmbeddingBag's with include_last_offset=True"},
    eager=eager.embedding_bags,
    check=check,
    outputs={"out": _output},
    # A maximum looks again where it comes from; else the tables' values are in the weights' gradient alone.
    saves=SavedBy("mode", {"sum": IDS, "mean": IDS, "max": (*IDS, "tables")}, {"per_sample_weights": ("tables",)}),
    gradients={
        "tables": KeptShape("tables", dtype_of="grad_out"),
        "per_sample_weights": like("per_sample_weights", dtype_of="grad_out"),
    },
    auto=choice.auto,
    prepare=Prepared(("row_keys", "id_positions", "bags", "lengths"), _sorted),
)


def embedding_bags(
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    mode: str = "sum",
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
    out_of_range: str = "error",
    *,
    backend: str = "auto",
) -> Tensor:
    """Look-ups in F tables, pooled by bags, in one launch → [B, F, D], contiguous.

    Args:
        tables: [R, D], the tables one behind the other; float32, float16, bfloat16 or float64.
        row_offsets: int64 [F + 1], rising from 0 to at most R: table f is tables[row_offsets[f] : row_offsets[f + 1]].
            On a CPU it is a ValueError if they do not, on backend="eager" and in a gradient by "triton"; kernels
            read no row beyond R, whatever they are.
        indices: int32 or int64 ids, of their tables. Without offsets [B, F], one id a bag; with offsets [N].
        offsets: int32 or int64 [F B + 1], 0 first, N last: bag f B + b, feature f of row b, is
            indices[offsets[f B + b] : offsets[f B + b + 1]] (the layout of torchrec's KeyedJaggedTensor).
        mode: sum | mean | max, as nn.EmbeddingBag; an empty bag gives zeros.
        per_sample_weights: what each row is multiplied by, in tables's dtype and indices's shape; for a sum only.
        padding_idx: an id of every table that stands for nothing: it adds nothing and does not count in a mean. None or
            -1: there is none.
        out_of_range: what becomes of an id that its table does not have. Its row counts as zeros, and that is all with
            "zero". With "count" `out_of_range_count` counts it. With "error" it is an IndexError: at once for tensors
            of a CPU and on backend="eager"; on a GPU nobody waits for the kernel, so the next call that is neither
            captured nor compiled raises, or `check_ids`. Bad offsets are reported in the same way with all three, and
            nothing is read outside of a tensor.
        backend: "triton", "cuda", "eager", or "auto": for a CUDA tensor Triton, or CUDA where Triton does not run; else
            eager, as where neither runs, and for 2^31 ids and more.

    Halves are added up in float32. Differentiable once, in reverse mode, with respect to tables (dense: the gradient
    is as large as the tables; `embedding_bags_sgd_` and its like make none) and per_sample_weights; what several ids
    of a row give is added in the order of their positions, so every run gives the same bits. A gradient is of less than
    2^31 ids: `embedding_bags_sort` sorts them. The tables may be written to between a sum's or a mean's forward and
    backward, if per_sample_weights need no gradient: kernels keep their shape alone. Nothing is raised for values that
    are not there (on the device meta, in a FakeTensorMode, while torch.compile traces backend="eager").

    Raises:
        TypeError: a dtype. ValueError: a shape, a device, a mode, offsets; an unknown backend.
        IndexError: an id out of range, perhaps of an earlier call. RuntimeError: a backend this machine lacks.
    """
    padding = -1 if padding_idx is None else padding_idx
    arguments = tables, row_offsets, indices, offsets, mode, per_sample_weights, padding, out_of_range
    return reported.call(OP, backend, tables, arguments)
