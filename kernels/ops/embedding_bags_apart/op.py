"""embedding_bags_apart: the declaration, and the public function.

It is embedding_bags of tables that were not laid one behind the other, in one launch. A gradient takes embedding_bags'
way: embedding_bags_sort orders the ids of all tables by the rows that they name, and the backward adds up what lies
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ...dispatch import checks
from ...dispatch.op import KeptShapes, Op, Prepared
from ...dtypes import INTEGERS
from ..embedding_bags import reported
from ..embedding_bags.choice import cuda_runs
from . import eager
from .joined import sorted_ids


def check(
    op: str, tables: Sequence[Tensor], indices: Sequence[Tensor], offsets: Sequence[Tensor], mode: str,
    include_last_offset: bool,
) -> None:
    """Raise for what is wrong with types, dtypes, shapes and devices; of values the kernels take care."""
    for name, tensors in (("tables", tables), ("indices", indices), ("offsets", offsets)):
        if len(tensors) != len(tables) and (tensors or name == "indices"):
            raise ValueError(f"{op}: {name} must be as many as tables, {len(tables)}; got {len(tensors)}")
        for i, tensor in enumerate(tensors):
            own, first = f"{name}[{i}]", tensors[0]
            checks.is_beside(op, own, tensor, tables[0], "tables[0]")
            checks.has_dtype(op, own, tensor, *([] if name == "tables" else [INTEGERS]))
            if tensor.dtype != first.dtype:
                expected, got = checks.plain(first.dtype), checks.plain(tensor.dtype)
                raise TypeError(f"{op}: {own} must have {name}[0]'s dtype, {expected}; got {got}")
            if name == "tables":
                wrong, expected = tensor.dim() != 2 or tensor.shape[1:] != first.shape[1:], "[R, D], of one D"
            elif name == "indices" and offsets:
                wrong, expected = tensor.dim() != 1, "[N]"
            else:
                wrong, expected = tensor.dim() != 1 or tensor.shape != first.shape, "[B], of one B"
            if wrong:
                raise ValueError(f"{op}: {own} must have shape {expected}; got {list(tensor.shape)}")
    checks.is_one_of(op, "mode", mode, ("sum", "mean"))
    if include_last_offset and not offsets:
        raise ValueError(f"{op}: offsets must be given, since there is include_last_offset")
    if include_last_offset and not offsets[0].shape[0]:
        raise ValueError(f"{op}: offsets[0] must have shape [B + 1], since there is include_last_offset; got [0]")


def _output(named: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    tables, offsets = named["tables"], named["offsets"]
    rows = offsets[0].shape[0] - int(named["include_last_offset"]) if offsets else named["indices"][0].shape[0]
    return (rows, len(tables), tables[0].shape[1]), tables[0].dtype


OP = Op(
    "embedding_bags_apart",
    "(Tensor[] tables, Ragged[] indices, Tensor[] offsets, str mode, bool include_last_offset) -> "
    "(Tensor out, Report report)",
    eager=eager.embedding_bags_apart,
    check=check,
    outputs={"out": _output},
    saves=("indices", "offsets"),
    gradients={"tables": KeptShapes("tables", dtype_of="grad_out")},
    # Triton takes no array of pointers: 26 tables would be 104 arguments, and another kernel than 27 are.
    backends=("cuda",),
    # While torch.compile traces, the overload itself says what is missing.
    auto=lambda *_: "cuda" if is_compiling() or cuda_runs() else "eager",
    prepare=Prepared(("row_keys", "id_positions", "bags", "lengths"), sorted_ids),
)


def embedding_bags_apart(
    tables: Sequence[Tensor],
    indices: Sequence[Tensor],
    offsets: Sequence[Tensor] | None = None,
    mode: str = "sum",
    include_last_offset: bool = False,
    *,
    backend: str = "auto",
) -> Tensor:
    """Look-ups in F tables that lie apart, pooled by bags, in one launch → [B, F, D], contiguous.

    It gives what F calls of nn.EmbeddingBag, or of nn.Embedding, give, side by side.

    Args:
        tables: F of [R, D]: each its own R, all one D and dtype; float32, float16, bfloat16 or float64. One that is not
            contiguous is copied at each call. A launch takes 64 tables: of more there are several.
        indices: F of [N], int32 or int64, of one dtype: the ids of each table. Without offsets N is B, one id a bag.
            They may be columns of a matrix: they are read where they are.
        offsets: None, or F of [B], int32 or int64, of one dtype: where each table's bags begin in its ids, 0 first;
            the last bag goes to the end. With include_last_offset F of [B + 1], N last.
        mode: sum | mean, as nn.EmbeddingBag; an empty bag gives zeros.
        include_last_offset: whether the offsets say where the last bag ends, which must be where the ids do.
        backend: "cuda", "eager", or "auto": CUDA for CUDA tensors, where it can run; else eager. While torch.compile
            traces a call with CUDA tensors, "auto" is CUDA.

    An id that its table does not have is an IndexError, and bad offsets are a ValueError: at once for tensors of a CPU
    and on backend="eager". On a GPU nobody waits for the kernel, so the next call that is neither captured nor compiled
    raises, or `check_ids`; the id's row counts as zeros meanwhile, and nothing is read outside of a tensor. While
    torch.compile traces backend="eager", PyTorch's own operators say what is wrong.

    Halves are added up in float32. Differentiable once, in reverse mode, with respect to the tables: dense, a tensor a
    table, and none for those that need no gradient. What several ids of a row give is added in the order of their
    positions, so every run gives the same bits. A gradient is of less than 2^31 ids. It writes the tables' size once,
    in one launch, and sorts the ids; with offsets four small launches join them before. The tables may be written to
    between forward and backward. A CUDA graph of a gradient is captured after a call with tables of these heights.

    Raises:
        TypeError: a dtype, or no list of tensors. ValueError: a shape, a number of tensors, a device, a mode, offsets;
        an unknown backend. IndexError: an id out of range, perhaps of an earlier call. RuntimeError: a backend this
        machine lacks.
    """
    tables, indices = checks.listed(tables), checks.listed(indices)
    offsets = [] if offsets is None else checks.listed(offsets)
    first = tables[0] if isinstance(tables, list) and tables else None
    return reported.call(OP, backend, first, (tables, indices, offsets, mode, include_last_offset))
