"""dlrm_forward: the declaration, and the public function; dlrm_forward_kept, its first half of a training step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import torch
from torch import Tensor

from ... import runtime
from ...dispatch import checks
from ...dispatch.op import Op
from ...dtypes import FLOATING, INTEGERS
from ..embedding_bags import reported
from ..fused_mlp import packing
from . import eager
from .choice import fits, why_not_kept
from .shape import ACTIVATIONS, PRECISIONS
from .tile import TYPES

ACTIVATION_NAMES = "bottom_activation", "bottom_final", "top_activation", "top_final"


def check(
    op: str, dense: Tensor, tables: Sequence[Tensor], indices: Sequence[Tensor], offsets: Sequence[Tensor],
    bottom_weights: Sequence[Tensor], bottom_biases: Sequence[Tensor], top_weights: Sequence[Tensor],
    top_biases: Sequence[Tensor], *options: str,
) -> None:
    """Raise for what is wrong with types, dtypes, shapes and devices; of ids and offsets the kernel takes care."""
    checks.has_dtype(op, "dense", dense, FLOATING)
    if dense.dim() != 2:
        raise ValueError(f"{op}: dense must have shape [B, K]; got {list(dense.shape)}")
    inputs = dense.shape[1]
    width = _check_layers(op, "bottom", bottom_weights, bottom_biases, dense, inputs)
    _check_tables(op, tables, indices, dense, width)
    if offsets:
        _check_offsets(op, tables, offsets, indices, dense)
    else:
        _check_ids(op, indices, dense)
    _check_layers(op, "top", top_weights, top_biases, dense, width + len(tables) * (len(tables) + 1) // 2)
    *activations, precision = options
    for name, activation in zip(ACTIVATION_NAMES, activations, strict=True):
        checks.is_one_of(op, name, activation, ACTIVATIONS)
    checks.is_one_of(op, "precision", precision, PRECISIONS)


def _check_layers(
    op: str, mlp: str, weights: Sequence[Tensor], biases: Sequence[Tensor], dense: Tensor, inputs: int
) -> int:
    """Returns the width of the last layer."""
    if not weights or len(weights) != len(biases):
        raise ValueError(f"{op}: {mlp}_weights and {mlp}_biases must be one or more, as many; got {len(weights)} and "
                         f"{len(biases)}")
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        outputs = weight.shape[0] if weight.dim() == 2 else 1
        if not outputs:
            raise ValueError(f"{op}: {mlp}_weights[{i}] must have one output or more; got {list(weight.shape)}")
        checks.belongs_to(op, f"{mlp}_weights[{i}]", weight, "dense", dense, (outputs, inputs))
        checks.belongs_to(op, f"{mlp}_biases[{i}]", bias, "dense", dense, (outputs,))
        inputs = outputs
    return inputs


def _check_tables(
    op: str, tables: Sequence[Tensor], indices: Sequence[Tensor], dense: Tensor, width: int
) -> None:
    if not tables or len(tables) != len(indices):
        raise ValueError(f"{op}: tables and indices must be one or more, as many; got {len(tables)} and {len(indices)}")
    for f, (table, ids) in enumerate(zip(tables, indices, strict=True)):
        checks.belongs_to(op, f"tables[{f}]", table, "dense", dense, (*table.shape[:1], width))
        _check_integers(op, f"indices[{f}]", ids, dense, indices[0])


def _check_offsets(
    op: str, tables: Sequence[Tensor], offsets: Sequence[Tensor], indices: Sequence[Tensor], dense: Tensor
) -> None:
    if len(offsets) != len(tables):
        raise ValueError(f"{op}: offsets must be as many as tables, {len(tables)}, or none; got {len(offsets)}")
    rows = dense.shape[0]
    for f, of_table in enumerate(offsets):
        _check_integers(op, f"offsets[{f}]", of_table, dense, offsets[0])
        if of_table.shape[0] not in (rows, rows + 1) or of_table.shape[0] != offsets[0].shape[0]:
            raise ValueError(
                f"{op}: offsets[{f}] must have shape [{rows}], or, all of them, [{rows + 1}] with the number of ids "
                f"last; got {list(of_table.shape)}"
            )


def _check_ids(op: str, indices: Sequence[Tensor], dense: Tensor) -> None:
    if any(ids.shape[0] != dense.shape[0] for ids in indices):
        rows, lengths = dense.shape[0], [ids.shape[0] for ids in indices]
        raise ValueError(f"{op}: indices must be of {rows} ids each, since there are no offsets; got {lengths}")


def _check_integers(op: str, name: str, tensor: Tensor, dense: Tensor, first: Tensor) -> None:
    checks.is_beside(op, name, tensor, dense, "dense")
    checks.has_dtype(op, name, tensor, INTEGERS if tensor is first else (first.dtype,))
    if tensor.dim() != 1:
        raise ValueError(f"{op}: {name} must have one dimension; got {list(tensor.shape)}")


KEPT_ACTIVATIONS = "identity", "relu", "leaky_relu"  # whose derivatives are of the sign of what they give


def check_kept(
    op: str, dense: Tensor, tables: Sequence[Tensor], indices: Sequence[Tensor], bottom: Tensor, top: Tensor,
    bottom_widths: str, top_widths: str, *activations: str,
) -> None:
    """The same of dlrm_forward_kept."""
    checks.has_dtype(op, "dense", dense, (torch.float32,))
    inputs, *_, width = _widths(op, "bottom_widths", bottom_widths)
    if dense.dim() != 2 or dense.shape[1] != inputs:
        raise ValueError(f"{op}: dense must have shape [B, {inputs}]; got {list(dense.shape)}")
    _check_tables(op, tables, indices, dense, width)
    _check_ids(op, indices, dense)
    wanted = width + len(tables) * (len(tables) + 1) // 2
    if (found := _widths(op, "top_widths", top_widths)[0]) != wanted:
        raise ValueError(f"{op}: top_widths must begin with {wanted}, vector 0 and the pairs; got {found}")
    for name, packed, widths in (("bottom", bottom, bottom_widths), ("top", top, top_widths)):
        checks.belongs_to(op, name, packed, "dense", dense, (packing.elements(widths),))
    for name, activation in zip(ACTIVATION_NAMES, activations, strict=True):
        checks.is_one_of(op, name, activation, KEPT_ACTIVATIONS)


def _widths(op: str, name: str, widths: str) -> list[int]:
    found = [int(width) if width.isdecimal() else 0 for width in widths.split("-")]
    if len(found) < 2 or 0 in found:
        raise ValueError(f"{op}: {name} must be two widths or more, such as 13-512-16; got {widths!r}")
    return found


shape_of, requires_grad = attrgetter("shape"), attrgetter("requires_grad")
nvrtc_runs = functools.cache(lambda: not runtime.why_not("nvrtc", "cuda"))


def auto(
    dense: Tensor, tables, indices, offsets, bottom_weights, bottom_biases, top_weights, top_biases, *options
) -> str:
    """What backend="auto" is for CUDA tensors: eager where a gradient is wanted, which the kernels have not, and where
    the model does not fit into one of them."""
    if torch.is_grad_enabled():
        tensors = (dense, *tables, *bottom_weights, *bottom_biases, *top_weights, *top_biases)
        if True in map(requires_grad, tensors):
            return "eager"
    if dense.dtype not in TYPES or not nvrtc_runs():
        return "eager"
    bottom, top = tuple(map(shape_of, bottom_weights)), tuple(map(shape_of, top_weights))
    fit = fits(bottom, top, len(tables), bool(offsets), dense.dtype, options[-1], dense.device)
    return "cuda" if fit else "eager"


def _output(named: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    return (named["dense"].shape[0], named["top_weights"][-1].shape[0]), named["dense"].dtype


OP = Op(
    "dlrm_forward",
    "(Tensor dense, Tensor[] tables, Ragged[] indices, Tensor[] offsets, Tensor[] bottom_weights, "
    "Tensor[] bottom_biases, Tensor[] top_weights, Tensor[] top_biases, str bottom_activation, str bottom_final, "
    "str top_activation, str top_final, str precision) -> (Tensor out, Report report)",
    eager=eager.dlrm_forward,
    check=check,
    outputs={"out": _output},
    backends=("cuda",),
    auto=auto,
    generates=True,
    package=__package__,
)


def auto_kept(dense: Tensor, tables, indices, bottom, top, bottom_widths: str, top_widths: str, *activations) -> str:
    """As `auto`."""
    is_kept = nvrtc_runs() and not why_not_kept(bottom_widths, top_widths, len(tables), dense.device)
    return "cuda" if is_kept else "eager"


def _values(widths: str) -> Callable[[Mapping[str, object]], tuple[Sequence[int], torch.dtype]]:
    """Of the MLP with this argument's widths."""
    return lambda named: (
        (named["dense"].shape[0], packing.hidden_parts(named[widths], "relu", "relu")[-1]), named["dense"].dtype
    )


def _columns(widths: str, place: int, pad_to: int = 1) -> Callable[[Mapping[str, object]], tuple]:
    """One of this argument's widths, filled up."""
    return lambda named: (
        (named["dense"].shape[0], -(-int(named[widths].split("-")[place]) // pad_to) * pad_to), named["dense"].dtype
    )


KEPT = Op(
    "dlrm_forward_kept",
    "(Tensor dense, Tensor[] tables, Ragged[] indices, Tensor bottom, Tensor top, str bottom_widths, str top_widths,"
    " str bottom_activation, str bottom_final, str top_activation, str top_final) -> (Tensor out, Tensor bottom_values,"
    " Tensor vector, Tensor features, Tensor top_values, Report report)",
    eager=eager.dlrm_forward_kept,
    check=check_kept,
    outputs={
        "out": _columns("top_widths", -1),
        "bottom_values": _values("bottom_widths"),
        "vector": _columns("bottom_widths", -1),
        "features": _columns("top_widths", 0, eager.PAD_TO),
        "top_values": _values("top_widths"),
    },
    backends=("cuda",),
    auto=auto_kept,
    generates=True,
    launches="forward_kept",
    package=__package__,
)
OPS = (OP, KEPT)


def dlrm_forward_kept(
    dense: Tensor, tables: Sequence[Tensor], rows: Tensor, bottom: Tensor, top: Tensor, bottom_widths: str,
    top_widths: str, *activations: str, backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dlrm_forward of one id a feature in tf32, with what a backward reads: out, bottom_values, vector, features,
    top_values.

    It has no gradient itself: a training step gives these to the backwards of its parts, `fused_mlp_chain`'s of each
    MLP and `lookup_interact_gradients`, and their forwards do not run.

        bottom_values [B, Σ P(n)]      what the bottom MLP's layers but the last give, as `hidden_parts` has it
        vector        [B, D]           the bottom MLP's output
        features      [B, W]           what the top MLP reads, as its products take it: rounded to tf32; filled up with
                                       zeros to a multiple of 8
        top_values    [B, Σ P(n)]      the top MLP's layers

    Args:
        dense: float32 [B, K]; tables: F tensors [R_f, D]; rows: int32 or int64 [B, F], ids of their tables.
        bottom, top: weights and biases of each MLP in one buffer (packing.py), of widths that are given as "13-512-16".
        activations: four, as of dlrm_forward, each of "identity", "relu", "leaky_relu": their derivatives are of the
            sign alone, which what is rounded has, too.
        backend: "cuda": models that pairs of multiprocessors of sm_90 take (pair.py), or "eager", whose products are as
            exact as PyTorch's own; "auto": "cuda" for CUDA tensors of a model that it takes, else "eager".

    Raises as dlrm_forward, and in its name for what is wrong with ids; RuntimeError where a gradient is wanted.
    """
    return reported.call(
        KEPT, backend, dense,
        (dense, list(tables), list(rows.unbind(1)), bottom, top, bottom_widths, top_widths, *activations),
    )


def dlrm_forward(
    dense: Tensor,
    tables: Sequence[Tensor],
    indices: Tensor | Sequence[Tensor],
    offsets: Sequence[Tensor] | None,
    bottom_weights: Sequence[Tensor],
    bottom_biases: Sequence[Tensor],
    top_weights: Sequence[Tensor],
    top_biases: Sequence[Tensor],
    bottom_activation: str = "relu",
    bottom_final: str = "relu",
    top_activation: str = "relu",
    top_final: str = "identity",
    precision: str = "ieee",
    *,
    backend: str = "auto",
) -> Tensor:
    """The whole forward of a DLRM in one kernel → [B, N], contiguous.

        d = bottom(dense)      v_f = Σ of the rows of table f in the row's bag      out = top([d; v_i · v_j for j < i])

    with v_0 = d, and the pairs row by row through the strictly lower triangle, as `dot_interaction` has them.

    Args:
        dense: [B, K].
        tables: F tensors [R_f, D], which may lie anywhere; all of dense's dtype, as the weights and biases.
        indices: int32 or int64 ids, of their tables: without offsets F tensors [B], which may be strided, or one
            [B, F], one id a row; with offsets F tensors [N_f].
        offsets: None, or F tensors, int32 or int64, [B] or [B + 1]: row b's bag in table f are the ids of indices[f]
            from offsets[f][b] up to offsets[f][b + 1], the last one's up to the last id. The last of [B + 1] is N_f.
        bottom_weights, bottom_biases: [N1, K], …, [D, N] and [N1], …, [D], as nn.Linear keeps them; one or more.
        top_weights, top_biases: the same, with D + F (F + 1) / 2 inputs.
        bottom_activation, top_activation: those of `fused_mlp`, between the layers of each; bottom_final, top_final:
            after the last.
        precision: of float32 products: "ieee" (full float32), or "tf32", which allows tensor cores: for them x, the
            vectors, the weights and what is between the layers are rounded to the nearest number with 10 bits behind
            the leading one. Halves always go through tensor cores and are added up in float32.
        backend: "cuda" (NVRTC compiles a kernel for the model's shape at its first call, some seconds, and keeps it on
            disk), "eager", or "auto": "cuda" for CUDA tensors, but eager where a gradient is wanted, which the kernels
            do not have, and where the model does not fit into one; else eager.

    The design goes by the size. Small float32 models hold a row in the registers of a thread, in full float32 whatever
    the precision. In tf32 and halves, larger ones take a tile of rows through tensor cores (sm_80 or later): up to 31
    tables, D a multiple of 16 bytes, and all layers' inputs of 8 rows on chip; a launch before it lays the weights out.
    On sm_90 eight multiprocessors take a tile of a batch of few rows and share the weights, and two a tile of a larger
    one, if the MLPs have four and three layers of widths that pairs take. `shape.py`, `tile.py`, `cluster.py` and
    `pair.py` have the budgets. A larger model is refused, and so is one in full float32 that is not small: `auto` is
    then eager.

    An id that its table does not have, and bad offsets, raise as in `embedding_bags_apart`: at once for tensors of a
    CPU and on backend="eager", on a GPU in the next call that is neither captured nor compiled, or in `check_ids`. The
    row counts as zeros, and nothing is read outside of a tensor.

    Every run gives the same bits.

    Raises:
        TypeError: a dtype, what is no tensor. ValueError: a shape, a device, an unknown name or backend; offsets.
        IndexError: an id out of range, perhaps of an earlier call.
        DLRMError: a ValueError: the model does not fit into a kernel of backend="cuda"; it says by what.
        RuntimeError: a backend this machine lacks; backend="cuda" where a gradient is wanted.
    """
    if type(indices) is not list and isinstance(indices, Tensor):
        if indices.dim() != 2:
            raise ValueError(f"{OP.name}: indices must be a list, or of shape [B, F]; got {list(indices.shape)}")
        indices = indices.unbind(1)
    lists = tables, indices, [] if offsets is None else offsets, bottom_weights, bottom_biases, top_weights, top_biases
    arguments = dense, *map(checks.listed, lists), bottom_activation, bottom_final, top_activation, top_final, precision
    return reported.call(OP, backend, dense, arguments)
