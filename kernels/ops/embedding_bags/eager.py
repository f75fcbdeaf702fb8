"""out[b, f] = Σ (or mean, or maximum) of the rows of table f that bag (b, f) names, in plain PyTorch: the reference.

The tables lie one behind the other in one tensor, so row `id` of table f is row_offsets[f] + id of it.

Bytes, with N ids of `size` bytes, E = B · F · D elements of output and a row of D elements. Fused: the distinct rows in
(a row that several bags name may stay in the cache), the ids and offsets in, the output out. Eager goes through memory
with the gathered rows, [N, D], between the gathering and the pooling:

    tables[rows]      reads N rows, writes N D
    pooling           reads N D, writes E
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ...dispatch import checks, input_errors

_SECTOR = 32  # bytes: the least that a GPU's memory is read by


def embedding_bags(
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    mode: str = "sum",
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
    out_of_range: str = "error",
) -> Tensor:
    """The arguments are those of the public function → [B, F, D], contiguous.

    A bad id ("error") or bad offsets raise at once, which takes a synchronisation; row_offsets that fall or end beyond
    the tables do where none is needed, on a CPU. Where there are no values to look at (`checks.has_no_values`), as
    while torch.compile traces this, bad ids are zeros, and nothing is raised.
    """
    if not (row_offsets.is_cuda or checks.has_no_values(tables)):
        checks.rises("embedding_bags", "row_offsets", row_offsets, tables.shape[0])
    if offsets is not None and not checks.has_no_values(tables):
        check_offsets(offsets, indices.numel())
    arguments = row_offsets, indices, offsets, mode, per_sample_weights
    if padding_idx in (None, -1) and (out := looked_up_by_torch(tables, *arguments)) is not None:
        return out
    rows, inside, padding = table_rows(tables, row_offsets, indices, offsets, padding_idx)
    if out_of_range == "error" and not checks.has_no_values(tables):
        _raise_for_bad_ids(row_offsets, indices, offsets, ~(inside | padding))
    if out_of_range == "count" and not checks.has_no_values(tables):
        input_errors.add(tables.device, int((~(inside | padding)).sum()))
    values = tables[rows] if tables.shape[0] else tables.sum(0).expand(rows.shape[0], -1)  # of no rows the sum is zeros
    values = values.to(torch.promote_types(values.dtype, torch.float32)).where(inside.unsqueeze(1), 0)
    features, width = row_offsets.shape[0] - 1, tables.shape[1]
    weights = None
    if per_sample_weights is not None:  # one that is not finite does not count where there is no row
        weights = per_sample_weights.flatten().to(values.dtype).where(inside, 0)
    if offsets is None:
        values = values if weights is None else values * weights.unsqueeze(1)
        return values.view(indices.shape[0], features, width).to(tables.dtype).contiguous()
    if not width:  # where F.embedding_bag's backward reads what is not there, on a GPU
        nothing = values.sum() if weights is None else (values * weights.unsqueeze(1)).sum()
        return (nothing + values.new_zeros((offsets.shape[0] - 1) // max(features, 1), features, 0)).to(tables.dtype)
    # nn.EmbeddingBag's own pooling, on the rows that were gathered; a padding is row N. torch.compile makes numbers of
    # its tensors' sizes, so that each N is another graph.
    values = torch.cat([values, values.new_zeros(1, width)])
    positions = torch.arange(rows.shape[0], device=rows.device).where(~padding, rows.shape[0])
    pooled = F.embedding_bag(
        positions, values, offsets.long(), mode=mode, per_sample_weights=weights, include_last_offset=True,
        padding_idx=rows.shape[0],
    )
    bags = (offsets.shape[0] - 1) // max(features, 1)
    return pooled.to(tables.dtype).view(features, bags, width).transpose(0, 1).contiguous()


def looked_up_by_torch(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, offsets: Tensor | None, mode: str, weights: Tensor | None
) -> Tensor | None:
    """By F.embedding or F.embedding_bag on the tables themselves, in a tenth of the time: for tensors of a CPU, float32
    or float64, all of whose ids are rows. Else None. Offsets and row_offsets are good."""
    (rows, width), features = tables.shape, row_offsets.shape[0] - 1
    known = tables.is_cpu and not checks.has_no_values(tables) and tables.dtype in (torch.float32, torch.float64)
    known = known and torch._C._functorch.peek_interpreter_stack() is None  # torch.func has no one value to look at
    if not known or not (rows and width and features):
        return None
    first, heights, ids = row_offsets[:-1], row_offsets.diff(), indices.long()
    if offsets is not None:
        offsets = offsets.long()
        bags = (offsets.shape[0] - 1) // features
        count = offsets[:: bags].diff() if bags else heights * 0
        first, heights = first.repeat_interleave(count), heights.repeat_interleave(count)
    if not bool(((ids >= 0) & (ids < heights)).all()):
        return None
    places = ids + first
    if offsets is None:
        vectors = F.embedding(places, tables)
        return vectors if weights is None else vectors * weights.unsqueeze(2)
    pooled = F.embedding_bag(
        places, tables, offsets, mode=mode, per_sample_weights=weights, include_last_offset=True
    )
    return pooled.view(features, bags, width).transpose(0, 1).contiguous()


def table_rows(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, offsets: Tensor | None, padding_idx: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """For each of the N ids: its row in `tables` (0 if it has none), whether it has one, whether it is padding."""
    ids = indices.long().flatten()
    features = feature_of_positions(row_offsets, indices, offsets)
    first, end = row_offsets[features], row_offsets[features + 1]
    rows = first + ids
    padding = ids == padding_idx if padding_idx is not None and padding_idx >= 0 else torch.zeros_like(ids, dtype=bool)
    # A padding may be an id beyond its table: it is no row, and no error.
    inside = (ids >= 0) & (ids < end - first) & (rows >= 0) & (rows < tables.shape[0]) & ~padding
    return rows.where(inside, 0), inside, padding


def feature_of_positions(row_offsets: Tensor, indices: Tensor, offsets: Tensor | None) -> Tensor:
    """Which feature each of the N ids belongs to: int64 [N]."""
    features, positions = row_offsets.shape[0] - 1, torch.arange(indices.numel(), device=indices.device)
    if offsets is None:
        return positions % max(features, 1)
    return bag_of_positions(indices, offsets) // max((offsets.shape[0] - 1) // max(features, 1), 1)


def bag_of_positions(indices: Tensor, offsets: Tensor) -> Tensor:
    """Which bag each of the N ids lies in: int64 [N]."""
    positions = torch.arange(indices.numel(), device=indices.device)
    return torch.searchsorted(offsets.long(), positions, right=True) - 1


def check_offsets(offsets: Tensor, ids: int) -> None:
    """Raise ValueError, naming the position, unless offsets go from 0 to the number of ids and never fall."""
    wide = offsets.long()
    bad = (wide < 0) | (wide > ids)
    bad[0] |= wide[0] != 0
    bad[1:] |= wide.diff() < 0
    bad[-1] |= wide[-1] != ids
    if bad.any():
        position = int(bad.nonzero()[0])
        raise ValueError(bad_offset("embedding_bags", position, int(wide[position])))


def bad_offset(op: str, position: int, value: int) -> str:
    """What is said of an offset that cannot be."""
    expected = "offsets must go from 0 to the number of ids (include_last_offset) and never fall"
    return f"{op}: {expected}; offsets[{position}] is {value}"


def bad_id(op: str, feature: int, position: int, value: int) -> str:
    """What is said of an id that its table does not have."""
    return f"{op}: id {value} of feature {feature}, at position {position} of indices, is out of range for its table"


def _raise_for_bad_ids(row_offsets: Tensor, indices: Tensor, offsets: Tensor | None, bad: Tensor) -> None:
    if bad.any():
        position = int(bad.nonzero()[0])
        feature = int(feature_of_positions(row_offsets, indices, offsets)[position])
        raise IndexError(bad_id("embedding_bags", feature, position, int(indices.flatten()[position])))


def forward_bytes(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, offsets: Tensor | None = None, *_: object
) -> int:
    """Bytes that a look-up of these ids must move: the distinct sectors of their rows, the ids and offsets, the output.

    It counts as if nothing of the tables were in a cache before, and everything that was read once stayed there.
    """
    rows, inside, _ = table_rows(tables, row_offsets, indices, offsets, None)
    distinct, row_bytes = rows[inside].unique(), tables.shape[1] * tables.itemsize
    first, last = distinct * row_bytes // _SECTOR, ((distinct + 1) * row_bytes - 1) // _SECTOR
    shared = int((first[1:] == last[:-1]).sum())  # two rows that meet within a sector
    sectors = int((last - first + 1).sum()) - shared if row_bytes else 0
    bags = indices.numel() if offsets is None else len(offsets) - 1
    read = indices.nbytes + (0 if offsets is None else offsets.nbytes)
    return sectors * _SECTOR + read + bags * row_bytes
