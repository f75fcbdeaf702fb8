"""The ids of tables that lie apart, joined and in the order of the rows that they name: what their gradients walk.

Bytes: the ids and offsets are copied once, in one launch of PyTorch's without offsets, in four with them; then the sort
moves them, as embedding_bags_sort says.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor

from ...dispatch import checks
from ..embedding_bags_sort.op import beside, embedding_bags_sort


@functools.cache
def _row_offsets(heights: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each table's rows begin, and where the last's end: a tensor of the device. It is kept for good: a captured
    graph copies nothing to it, and reads it whenever it is replayed."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("call the op's gradient once before a CUDA graph of it is captured, with these tables")
    with torch.inference_mode(mode=False):
        return torch.tensor([0, *accumulate(heights)], dtype=torch.int64, device=device)


def _check(named: Mapping[str, object]) -> None:
    """Raise ValueError unless the backward's arguments are of one call: nothing of it is saved that tells."""
    op, shapes, grad = "embedding_bags_apart_backward", list(named["tables_shape"]), named["grad_out"]
    indices, offsets = named["indices"], named["offsets"]
    count, bags = len(indices), offsets or indices
    if len(shapes) != 3 * count or any(dims != 2 for dims in shapes[::3]) or any(d != shapes[2] for d in shapes[2::3]):
        raise ValueError(f"{op}: tables_shape must be 2, R and one D for each of {count} tables; got {shapes}")
    if len(bags) != count or any(each.dim() != 1 or each.shape != bags[0].shape for each in bags):
        raise ValueError(f"{op}: {'offsets' if offsets else 'indices'} must be {count} of one length")
    expected = [bags[0].shape[0] - int(named["include_last_offset"]), count, shapes[2]]
    if list(grad.shape) != expected:
        raise ValueError(f"{op}: grad_out must have shape {expected}; got {list(grad.shape)}")
    checks.is_one_of(op, "mode", named["mode"], ("sum", "mean"))


def sorted_ids(backend: str, named: Mapping[str, object]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """embedding_bags_sort of all tables' ids; named: the backward's arguments by name. Rows are counted through all."""
    _check(named)
    indices, offsets = named["indices"], named["offsets"]
    heights = tuple(named["tables_shape"][1::3])  # of each table 2, R and D
    row_offsets = _row_offsets(heights, indices[0].device)
    if offsets:
        *bases, count = accumulate((ids.shape[0] for ids in indices), initial=0)
        begins = [each[:-1] for each in offsets] if named["include_last_offset"] else list(offsets)
        end = begins[0].new_full((1,), count)
        indices, offsets = torch.cat(indices), torch.cat([*torch._foreach_add(begins, bases), end])
    else:
        indices, offsets = torch.stack(indices, 1), None
    return embedding_bags_sort(
        indices, row_offsets, offsets, sum(heights), -1, named["mode"] == "mean", backend=beside(backend, indices)
    )
