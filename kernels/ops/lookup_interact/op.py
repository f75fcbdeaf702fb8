"""lookup_interact, lookup_interact_gradients: the declarations, and the public functions.

They are embedding_bags and an interaction in one kernel, forward and backward. A dense gradient of the tables takes
embedding_bags' way from the vectors' gradients on: embedding_bags_sort, and its backward's sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...dispatch.op import Op, Prepared, like
from ...dispatch.refusals import autocasts, refuse_gradients
from ..embedding_bags import reported
from ..embedding_bags.op import check_bags
from ..embedding_bags_sort.op import beside, embedding_bags_sort
from . import choice, eager


def check(
    op: str, dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor, offsets: Tensor | None, pad_to: int,
    precision: str, kind: str,
) -> None:
    """Raise unless there are bags, and pad_to is positive."""
    check_bags(op, indices, offsets)
    if pad_to < 1:
        raise ValueError(f"{op}: pad_to must be a positive integer; got {pad_to}")


def check_gradients(
    op: str, grad_out: Tensor, dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor,
    offsets: Tensor | None, precision: str, kind: str,
) -> None:
    """Raise unless there are bags, and grad_out is as wide as they make it."""
    check_bags(op, indices, offsets)
    least = eager.width(row_offsets.shape[0] - 1, dense.shape[1], kind=kind)
    if grad_out.shape[1] < least:
        got = list(grad_out.shape)
        raise ValueError(f"{op}: grad_out must have shape [B, {least}] or be wider, for dense; got {got}")


def _output(named: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    (rows, columns), features = named["dense"].shape, named["row_offsets"].shape[0] - 1
    return (rows, eager.width(features, columns, named["pad_to"], named["kind"])), named["dense"].dtype


def _vectors(named: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    rows, columns = named["dense"].shape
    return (rows, named["row_offsets"].shape[0] - 1, columns), named["dense"].dtype


def _sorted(backend: str, named: Mapping[str, object]) -> Sequence[Tensor]:
    indices, row_offsets = named["indices"], named["row_offsets"]
    if not named["needs"][1]:  # of the tables
        return [indices.new_empty(0, dtype=torch.int32)] * 4
    return embedding_bags_sort(
        indices, row_offsets, named["offsets"], named["tables"].shape[0], backend=beside(backend, indices)
    )


def auto(dense: Tensor, tables: Tensor, row_offsets: Tensor, *others: object) -> str:
    """What backend="auto" is for CUDA tensors: eager where the plain kernels would run, which are for completeness."""
    *_, precision, kind = others
    shape = row_offsets.shape[0] - 1, dense.shape[1]
    return "cuda" if choice.fits(*shape, dense.dtype, precision, dense.device, kind) else "eager"


LOOKED_UP = (
    "dense [B, D]: {dense}; tables [R, D]: dense; row_offsets [F + 1]: int64; offsets [F · B + 1]: integer; "
    "indices [B, F] | [N] with offsets: integer; precision: ieee | tf32; kind: dot | fm | flat"
)
HINTS = {"offsets": "the number of ids comes last, as in nn.EmbeddingBag's with include_last_offset=True"}
OP = Op(
    "lookup_interact",
    "(Tensor dense, Tensor tables, Tensor row_offsets, Ragged indices, Tensor? offsets, int pad_to, str precision,"
    " str kind) -> (Tensor out, Report report)",
    shapes=LOOKED_UP.format(dense="floating"),
    hints=HINTS,
    eager=eager.lookup_interact,
    check=check,
    outputs={"out": _output},
    saves=("dense", "tables", "row_offsets", "indices", "offsets"),
    gradients={"dense": like("dense"), "tables": like("tables")},
    backends=("cuda",),
    auto=auto,
    prepare=Prepared(("row_keys", "id_positions", "bags", "lengths"), _sorted),
    package=__package__,
)
GRADIENTS = Op(
    "lookup_interact_gradients",
    "(Tensor grad_out, Tensor dense, Tensor tables, Tensor row_offsets, Ragged indices, Tensor? offsets, str precision,"
    " str kind) -> (Tensor grad_dense, Tensor grad_sparse)",
    shapes=f"grad_out [B, W]: floating; {LOOKED_UP.format(dense='grad_out')}",
    hints=HINTS,
    eager=eager.lookup_interact_gradients,
    check=check_gradients,
    outputs={"grad_dense": like("dense"), "grad_sparse": _vectors},
    backends=("cuda",),
    auto=lambda grad_out, *arguments: auto(*arguments),
    package=__package__,
)
OPS = (OP, GRADIENTS)


def _like_tables(tables: Tensor, *others: Tensor) -> Sequence[Tensor]:
    """The others in the tables' dtype where autocast would cast all, the whole of tables at each call."""
    floating = all(isinstance(tensor, Tensor) and tensor.is_floating_point() for tensor in (tables, *others))
    if not floating or not autocasts(tables) or torch.float64 in {tensor.dtype for tensor in (tables, *others)}:
        return others
    return [tensor.to(tables.dtype) for tensor in others]


def lookup_interact(
    dense: Tensor,
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    pad_to: int = 1,
    precision: str = "ieee",
    kind: str = "dot",
    *,
    backend: str = "auto",
) -> Tensor:
    """Look-ups in F tables and how the vectors meet in one launch → [B, W], contiguous. The vectors, [B, F, D], are
    never in memory.

    With t_0 the row of dense, and t_f the sum of the rows of table f that the row's bag names, a row is, by kind,

        dot    t_0, then t_i · t_j for i = 1 … F and j = 0 … i - 1: DLRM's interaction (arXiv:1906.00091), which is
               dot_interaction(dense, embedding_bags(tables, row_offsets, indices, offsets), pad_to)
        fm     t_0, then Σ t_i ⊙ t_j of the same pairs, column by column: a factorization machine's (Rendle 2010)
        flat   t_0, t_1, …, t_F

    then zeros up to W: D + F (F + 1) / 2, 2 D or (F + 1) D, rounded up to a multiple of pad_to.

    Args:
        dense: [B, D], float32, float16, bfloat16 or float64.
        tables: [R, D], the tables one behind the other, of dense's dtype.
        row_offsets: int64 [F + 1], rising from 0 to at most R: table f is tables[row_offsets[f] : row_offsets[f + 1]].
        indices: int32 or int64 ids, of their tables. Without offsets [B, F], one id a bag; with offsets [N].
        offsets: int32 or int64 [F B + 1], 0 first, N last: bag f B + b, feature f of row b, is
            indices[offsets[f B + b] : offsets[f B + b + 1]]; an empty bag gives zeros.
        pad_to: so that a following matrix product finds aligned rows: 4 for float32, 8 for half precision.
        precision: of float32 products: "ieee" (full float32), or "tf32", which allows tensor cores: for them vectors
            are rounded to the nearest number with 10 bits behind the leading one. Halves always go through tensor
            cores, where there are some, and are added up in float32. On backend="eager" it does not count: there
            torch.set_float32_matmul_precision says, for "ieee" too. For fm and flat it does not count either.
        kind: "dot", "fm" or "flat".
        backend: "cuda", "eager", or "auto": for a CUDA tensor CUDA, of dot where a warp holds a row's vectors, else
            eager.

    Of dot a warp holds a row of up to 31 tables (27 in full float32), whose vectors are a multiple of 16 bytes, up to
    512, and aligned. What does not fit, and float64, a plain kernel computes: `embedding_bags` and `dot_interaction`
    are faster. For fm and flat tables and widths have no limit; rows of whole 16 bytes, and aligned, are faster.

    fm is added up as it stands, in float32 of halves: ½ ((Σ t_i)² − Σ t_i²), as backend="eager" computes it, is a
    difference, and loses the digits that both have in common. A NaN or Inf in a column makes NaN of it, as there.

    Under torch.autocast a dense of another dtype is cast to that of tables, which are not cast.

    An id that its table does not have, and bad offsets, raise as in `embedding_bags`, and in its name: at once for
    tensors of a CPU and on backend="eager", on a GPU in the next call that is neither captured nor compiled, or in
    `check_ids`. The id's row counts as zeros, and nothing is read outside of a tensor. Every run gives the same bits.

    Differentiable once, in reverse mode, with respect to dense and tables, which may not be written to between forward
    and backward: vectors are looked up again there. The tables' gradient is dense, as large as the tables, and of less
    than 2^31 ids, as `embedding_bags` gives it; with it the vectors' gradient, [B, F, D], is in memory for a moment.
    Where an update takes that itself, `lookup_interact_gradients` gives it.

    Raises:
        TypeError: a dtype, what is no tensor. ValueError: a shape, a device, an unknown name or backend; offsets.
        IndexError: an id out of range, perhaps of an earlier call. RuntimeError: a backend this machine lacks.
    """
    (dense,) = _like_tables(tables, dense)
    return reported.call(OP, backend, dense, (dense, tables, row_offsets, indices, offsets, pad_to, precision, kind))


def lookup_interact_gradients(
    grad_out: Tensor,
    dense: Tensor,
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    precision: str = "ieee",
    kind: str = "dot",
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The gradients of lookup_interact's vectors, which are looked up again → grad_dense [B, D], grad_sparse [B, F, D].
    Of flat they are columns of grad_out, and nothing is looked up.

    grad_sparse is that of the looked-up vectors, contiguous: `embedding_bags_sgd_` and its like take it as grad, with
    the same row_offsets, indices and offsets. So the vectors' gradient is in memory, while the vectors are not.

    Args:
        grad_out: [B, W], that of lookup_interact's output, padded or not; float32, float16, bfloat16 or float64.
        dense, tables, row_offsets, indices, offsets, precision, kind, backend: as of lookup_interact, of grad_out's
            dtype; under torch.autocast grad_out is cast to that of tables, too. tf32 rounds grad_out too.

    An id that its table does not have counts as zeros: the forward reports it. Bad offsets raise on backend="eager";
    CUDA clamps them to what can be read, and tells of none. Where row_offsets do not rise from 0 to at most R, "eager"
    raises on a CPU; else nothing is read outside of tables, and which rows are looked up is not said. Every run gives
    the same bits.

    Raises:
        TypeError: a dtype, what is no tensor. ValueError: a shape, a device, an unknown name or backend; offsets,
        row_offsets. RuntimeError: a backend this machine lacks; gradients are enabled and an argument requires one.
    """
    grad_out, dense = _like_tables(tables, grad_out, dense)
    arguments = grad_out, dense, tables, row_offsets, indices, offsets, precision, kind
    refuse_gradients(GRADIENTS, "", arguments)
    return GRADIENTS.call(backend, *arguments)
