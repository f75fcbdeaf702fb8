"""embedding_bags: the declaration, and the public functions.

A gradient takes two ops: embedding_bags_sort, which orders the ids by the rows that they name, and the backward here,
which adds up what lies together. So a sort of PyTorch's serves Triton, whose kernels sort within a block only.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from kernels import runtime
from kernels.dispatch import checks, report
from kernels.dispatch.op import Op, like
from kernels.ops.embedding_bags import eager
from kernels.ops.embedding_bags_sort.op import embedding_bags_sort

INTEGERS = (torch.int32, torch.int64)
MODES = ("sum", "mean", "max")
OUT_OF_RANGE = ("error", "zero", "count")
BAD_OFFSET = 2  # of what kernels report: a bad offset; else a bad id


def check(
    op: str,
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    mode: str = "sum",
    per_sample_weights: Tensor | None = None,
    padding_idx: int = -1,
    out_of_range: str = "error",
) -> None:
    """Raise for what is wrong with types, dtypes, shapes and devices; of values the kernels take care."""
    checks.has_dtype(op, "tables", tables)
    if tables.dim() != 2:
        raise ValueError(f"{op}: tables must have shape [R, D]; got {list(tables.shape)}")
    for name, tensor in (("row_offsets", row_offsets), ("indices", indices), ("offsets", offsets)):
        if tensor is not None:
            checks.has_dtype(op, name, tensor, INTEGERS[1:] if name == "row_offsets" else INTEGERS)
            if tensor.device != tables.device:
                raise ValueError(f"{op}: {name} must be on tables's device, {tables.device}; got {tensor.device}")
    if row_offsets.dim() != 1 or not len(row_offsets):
        raise ValueError(f"{op}: row_offsets must have shape [F + 1]; got {list(row_offsets.shape)}")
    features = len(row_offsets) - 1
    if offsets is None:
        if indices.dim() != 2 or indices.shape[1] != features:
            raise ValueError(
                f"{op}: indices must have shape [B, {features}], for row_offsets of shape [{features + 1}]; got "
                f"{list(indices.shape)}"
            )
    else:
        if indices.dim() != 1:
            raise ValueError(f"{op}: indices must have shape [N], since there are offsets; got {list(indices.shape)}")
        bags = offsets.numel() - 1
        if offsets.dim() != 1 or bags < 0 or (bags % features if features else bags):
            raise ValueError(f"{op}: offsets must have shape [{features} · B + 1]; got {list(offsets.shape)}")
        if bags == 0 and indices.numel():
            raise ValueError(f"{op}: offsets must end at {indices.numel()}, the number of ids; they say of no bag")
    if not isinstance(padding_idx, int) or padding_idx < -1:
        raise ValueError(f"{op}: padding_idx must be an id, or -1 or None for none; got {padding_idx!r}")
    checks.is_one_of(op, "mode", mode, MODES)
    checks.is_one_of(op, "out_of_range", out_of_range, OUT_OF_RANGE)
    if per_sample_weights is not None:
        checks.belongs_to(op, "per_sample_weights", per_sample_weights, "tables", tables, indices.shape)
        if mode != "sum":
            raise ValueError(f"{op}: mode must be sum, since there are per_sample_weights; got {mode}")


def _output(given: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    tables, features = given["tables"], len(given["row_offsets"]) - 1
    offsets, indices = given["offsets"], given["indices"]
    rows = indices.shape[0] if offsets is None else (len(offsets) - 1) // max(features, 1)
    return (rows, features, tables.shape[1]), tables.dtype


def _weights_gradient(given: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    weights = given["per_sample_weights"]
    return ((0,) if weights is None else weights.shape), given["tables"].dtype


def _sorted(backend: str, given: Mapping[str, object]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return embedding_bags_sort(
        given["indices"], given["row_offsets"], given["offsets"], len(given["tables"]), given["padding_idx"],
        given["mode"] == "mean", backend="cuda" if backend == "cuda" else "eager",
    )  # fmt: skip


OP = Op(
    "embedding_bags",
    "(Tensor tables, Tensor row_offsets, Tensor indices, Tensor? offsets, str mode, Tensor? per_sample_weights, "
    "int padding_idx, str out_of_range) -> Tensor out",
    eager=eager.embedding_bags,
    check=check,
    outputs={"out": _output},
    saves=("tables", "row_offsets", "indices", "offsets", "per_sample_weights"),
    gradients={"tables": like("tables"), "per_sample_weights": _weights_gradient},
    prepare=_sorted,
    prepared=("row_keys", "id_positions", "bags", "lengths"),
    reports=True,
)


@functools.cache
def auto(ragged: bool) -> str:
    """What backend="auto" is for CUDA tensors. In the CUDA kernel threads that have done their bag go on with another;
    in Triton's a tile of bags waits for its longest, and takes two to three times as long on an H200."""
    return "cuda" if ragged and not runtime.why_not("cuda", "cuda") else OP.auto


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
        backend: "triton", "cuda", "eager", or "auto": for a CUDA tensor Triton, or CUDA if there are offsets and it can
            run (not under torch.compile); else eager.

    Halves are added up in float32. Differentiable once, in reverse mode, with respect to tables (dense: the gradient
    is as large as the tables; `embedding_bags_sgd_` and its like make none) and per_sample_weights; what several ids
    of a row give is added in the order of their positions, so every run gives the same bits. A gradient is of less than
    2^31 ids: `embedding_bags_sort` sorts them. Under torch.compile backend="eager" raises nothing.

    Raises:
        TypeError: a dtype. ValueError: a shape, a device, a mode, offsets; an unknown backend.
        IndexError: an id out of range, perhaps of an earlier call. RuntimeError: a backend this machine lacks.
    """
    padding = -1 if padding_idx is None else padding_idx
    arguments = tables, row_offsets, indices, offsets, mode, per_sample_weights, padding, out_of_range
    if is_compiling() or not isinstance(tables, Tensor):
        return OP.call(backend, *arguments)
    device = tables.get_device()
    if report.found(device):
        _raise(device, " (in an earlier call)")
    if backend == "auto" and device >= 0:
        backend = auto(offsets is not None)
    out = OP.call(backend, *arguments)
    if device < 0 or report.WAITS:
        check_ids(tables.device, wait=True)
    return out


def check_ids(device: torch.device | str | None = None, *, wait: bool = False) -> None:
    """Raise IndexError for an id that was out of range, or ValueError for bad offsets, in an earlier call.

    It reads what the kernels have written so far, and waits for them only with `wait`. Nothing of it costs a
    synchronisation otherwise: call it beside a training loop's own, where the loss is read. With FUSED_KERNELS_DEBUG=1
    in the environment every call that is not captured does so itself, and the call that is wrong raises.

    device: default: every device that was used.
    """
    if device is None:
        devices = report.devices()
    else:
        device = torch.device(device)
        devices = [-1 if device.type != "cuda" else torch.cuda.current_device() if device.index is None else
        device.index]
    for index in devices:
        if wait and index >= 0:
            if torch.cuda.is_current_stream_capturing():
                continue
            torch.cuda.synchronize(index)
        _raise(index, "")
        if wait and index >= 0:
            report.clear(index)


def out_of_range_count(device: torch.device | str | None = None) -> int:
    """How many ids were out of range, in all calls with out_of_range="count" that have finished. It does not wait.

    device: default: all together.
    """
    if device is None:
        return sum(map(report.count, report.devices()))
    device = torch.device(device)
    if device.type != "cuda":
        return report.count(-1)
    return report.count(torch.cuda.current_device() if device.index is None else device.index)


def _raise(device: int, when: str) -> None:
    """Raise what was reported of this device, once."""
    if (found := report.found(device)) is None:
        return
    report.clear(device)
    kind, feature, position, value = found
    if kind == BAD_OFFSET:
        raise ValueError(eager.bad_offset(OP.name, position, value) + when)
    raise IndexError(eager.bad_id(OP.name, feature, position, value) + when)
