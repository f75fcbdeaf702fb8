"""What the id table's ops are compared with, and the calls that are tried: integers, which are right or wrong."""

import functools

import torch
from torch import Tensor

from ...check import Call, Case, Spec
from . import eager
from .storage import empty, fill

EXTREMES = (0, -1, -2, -3, -4, 1, 2**32 + 5, -(2**32), 2**31, 2**63 - 1, -(2**63))


def storage(vocabularies: list[Tensor], load: float = 0.875) -> tuple[Tensor, ...]:
    """(tags, slots, bucket_offsets, seeds) of tables with these ids, on the CPU: the k-th id has row k."""
    buckets = [-int(-len(ids) // (load * eager.BUCKET_SLOTS)) for ids in vocabularies]
    tensors = empty(buckets, torch.arange(1, len(vocabularies) + 1))
    for table, ids in enumerate(vocabularies):
        fill(tensors, ids, torch.full_like(ids, table), torch.arange(1, len(ids) + 1), "eager")
    return tensors


@functools.cache
def _three_tables() -> tuple[Tensor, ...]:
    many = torch.randperm(4000, generator=torch.Generator().manual_seed(1))[:2000] * 1_000_003
    return storage([many, torch.tensor(EXTREMES), torch.empty(0, dtype=torch.int64)])


def _key_calls(case: Case, device: torch.device):
    """Keys in the case's shape and layout, of three tables and of two that are not there; and of them as int32."""
    tables = case.integers(2, 5, device) - 1
    known = case.integers(1, 4000, device) * 1_000_003
    extremes = torch.tensor(EXTREMES, device=device)[case.integers(3, len(EXTREMES), device)]
    keys = torch.where(tables == 0, known, extremes)
    tensors = tuple(tensor.clone().to(device) for tensor in _three_tables())
    for name, dtype in (("int64", torch.int64), ("int32", torch.int32)):
        yield Call(f"{case} {name}", (*tensors, keys.to(dtype), tables.to(dtype)))


def _offsets(case: Case, device: torch.device) -> Tensor:
    """Offsets of as many bags as the case has elements."""
    lengths = case.integers(1, 4, device).reshape(-1)
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _expand_calls(case: Case, device: torch.device):
    offsets = _offsets(case, device)
    features = case.shape[0]
    batch = (len(offsets) - 1) // max(features, 1)
    table_offsets = torch.tensor([0, features // 2, features // 2, features], device=device)
    for dtype in (torch.int64, torch.int32):
        cast = offsets.to(dtype)
        yield Call(f"{case} {dtype}", (cast, table_offsets), (3, batch, int(offsets[-1]) + 2))


def _range_calls(case: Case, device: torch.device):
    for call in _expand_calls(case, device):
        yield Call(call.name, call.tensors)


def _cases(_) -> list[Case]:
    shapes = [(1, 1), (0, 5), (5, 0), (7,), (33, 65), (2, 3, 5), (1, 2000)]
    layouts = [Case((17, 24), layout=layout) for layout in ("transposed", "strided", "expanded", "misaligned")]
    return [Case(shape) for shape in shapes] + layouts


def _wide_cases(_) -> list[Case]:
    return [Case((1031, 1024)), Case((1000003,))]


_spec = functools.partial(Spec, cases=_cases, wide_cases=_wide_cases)
SPECS = {
    "table_lookup": _spec(eager.table_lookup, _key_calls, outputs=("found", "rows")),
    "expand_table_ids": _spec(eager.expand_table_ids, _expand_calls),
    "get_table_range": _spec(eager.get_table_range, _range_calls),
    # Which slot a key gets hangs on the order of a GPU's threads, so these are compared by what look-ups then give.
    "table_claim_": _spec(eager.table_claim_, _key_calls, ("where",), ("tags", "slots"), repeatable=False),
    "table_erase_": _spec(eager.table_erase_, _key_calls, ("where",), ("tags", "slots")),
}
