"""What is measured of the id table: `python -m kernels.measure bench id_table`.

Criteo's 26 tables with Kaggle's cardinalities, 33.8 million ids: a batch's look-ups beside torch.searchsorted table by
table, which is what model.hashing's `sorted` does, and beside `index`, a comparison with every id; and building it.
"""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from ...check import Spec
from ...measure.cells import Cell, Lengths, implementations
from ...measure.judge import AnyLength, AtMost, NeverSlower
from ...measure.runs import generators
from . import eager, op
from .eager import BUCKET_SLOTS
from .table import IdTable

OP = "table_lookup"
KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
LOAD_LIMIT = 0.875
BATCH = 65536
COMPARED = 1460  # the cardinality of `index`, which takes 0.5 GB to compare a batch with all of it, 5 bytes each
SMALL, BAGS = (1000, 1000, 1000, 1000), 64  # tables, and rows of bags, whose look-up is done before the next call
UNKNOWN = 1 << 40  # added to an id, makes it one that no table has
SHOWN = {"batch": BATCH, "ids": "uniform"}
TARGETS = (
    AtMost(1 / 3, "searchsorted", "bandwidth", ("cuda",)),
    AtMost(1 / 10, "index", "index", ("cuda",)),
    NeverSlower("eager", ("auto",), "auto"),
    AnyLength(who=("cuda",)),
)


def _ids(rows: Tensor, cardinality: int) -> Tensor:
    """The id of row k, from 1: spread over 32 bits, ascending with k, so that its row is searchsorted's too."""
    return rows * ((1 << 32) // (cardinality + 1)) + 7


@functools.cache
def _vocabularies(sizes: tuple[int, ...], device: torch.device) -> list[Tensor]:
    return [_ids(torch.arange(1, n + 1, device=device), n) for n in sizes]


@functools.cache
def _table(sizes: tuple[int, ...], device: torch.device) -> IdTable:
    return IdTable(_vocabularies(sizes, device), load_limit=LOAD_LIMIT, device=device)


def _slots(sizes: tuple[int, ...]) -> int:
    return sum(-int(-n // (LOAD_LIMIT * BUCKET_SLOTS)) for n in sizes) * BUCKET_SLOTS


def _inputs(sizes: tuple[int, ...], batch: int, zipf: float, unknown: bool, ids) -> tuple[Tensor, Tensor]:
    """(keys, table_ids) [F · B], feature by feature, as a KeyedJaggedTensor has them."""
    keys = torch.stack([_ids(ids(batch, below=n, zipf=zipf) + 1, n) for n in sizes])
    if unknown:
        keys[:, ::2] += UNKNOWN
    tables = torch.arange(len(sizes), dtype=torch.int32, device=keys.device)
    return keys.reshape(-1), tables.repeat_interleave(batch)


@functools.cache
def _bytes(sizes: tuple[int, ...], batch: int, zipf: float, unknown: bool) -> int:
    """What a batch must move: keys, tables, found, rows; and of each distinct known id one sector of 32 bytes of tags
    and one of slots, of an unknown one the tags."""
    drawn = batch - batch // 2 * unknown
    distinct = sum(_distinct(n, drawn, zipf) for n in sizes)
    tags_alone = sum(_distinct(n, batch - drawn, zipf) for n in sizes)
    return int(64 * distinct + 32 * tags_alone) + len(sizes) * batch * (8 + 4 + 1 + 8)


def _distinct(cardinality: int, drawn: int, zipf: float) -> float:
    """How many different ones are among so many ids: expected of uniform ones, else of one draw."""
    if not zipf:
        return cardinality * (1 - (1 - 1 / cardinality) ** drawn)
    _, ids = generators(torch.float32, torch.device("cpu"))
    return len(ids(drawn, below=cardinality, zipf=zipf).unique())


def _searchsorted(sizes: tuple[int, ...]):
    def look_up(tags, slots, bucket_offsets, seeds, keys, table_ids):
        found, rows = [], []
        for known, asked in zip(_vocabularies(sizes, keys.device), keys.chunk(len(sizes)), strict=True):
            position = torch.searchsorted(known, asked)
            found.append(known[position.clamp(max=len(known) - 1)] == asked)
            rows.append(torch.where(found[-1], position + 1, 0))
        return torch.cat(found), torch.cat(rows)

    return look_up


def _index(sizes: tuple[int, ...]):
    def look_up(tags, slots, bucket_offsets, seeds, keys, table_ids):
        (known,) = _vocabularies(sizes, keys.device)
        numbers = torch.arange(1, len(known) + 1, dtype=torch.int32, device=keys.device)
        rows = ((keys.unsqueeze(-1) == known) * numbers).sum(-1, dtype=torch.int32).long()
        return rows > 0, rows

    return look_up


def _build(sizes: tuple[int, ...]):
    def look_up(tags, slots, bucket_offsets, seeds, keys, table_ids):
        table = IdTable(_vocabularies(sizes, keys.device), load_limit=LOAD_LIMIT, device=keys.device)
        return table(keys, table_ids)

    return look_up


def _cell(part: str, names: tuple[str, ...], sizes=KAGGLE, batch=BATCH, ids="uniform", **more) -> Cell:
    zipf, unknown = 1.05 * (ids == "zipf"), ids == "half unknown"
    slots = _slots(sizes)
    own = {"searchsorted": _searchsorted, "index": _index}
    builders = {name: functools.partial(own[name], sizes) for name in names if name in own}
    usual = implementations(OP, (), (name for name in names if name not in own))
    if part == "build":
        usual = {"cuda": functools.partial(_build, sizes)}
    return Cell(
        OP, part, "functional",
        {
            "batch": batch, "ids": ids, "table": f"{sum(sizes) / 1e6:.4g} M ids of {len(sizes)}",
            "load": f"load {sum(sizes) / slots:.3f}", "size": f"{17 * slots / sum(sizes):.1f} B an id",
        },
        inputs=lambda draw, ids_, *storage: (*storage, *_inputs(sizes, batch, zipf, unknown, ids_)),
        shared=lambda draw: _table(sizes, draw(1).device).storage(),
        implementations={name: (usual | builders)[name] for name in names},
        bytes=_bytes(sizes, batch, zipf, unknown),
        smaller=lambda: _cell(part, names, sizes, batch // 2, ids, **more) if batch > 1024 else None,
        **more,
    )


def _in_bags(module, **backend):
    """A look-up of a batch of bags: first each key's table, from the bags' offsets."""

    def look_up(tags, slots, bucket_offsets, seeds, keys, offsets):
        tables = module.expand_table_ids(offsets, None, len(SMALL), BAGS, len(keys), **backend)
        return module.table_lookup(tags, slots, bucket_offsets, seeds, keys, tables, **backend)

    return look_up


def _lengths() -> Lengths:
    def inputs(draw, ids, n, *storage) -> tuple[Tensor, ...]:
        ends = ids(len(SMALL) * BAGS - 1, below=n).sort().values
        offsets = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), n)])
        return *storage, _ids(ids(n, below=SMALL[0]) + 1, SMALL[0]), offsets

    return Lengths(
        OP, {"batch": BAGS, "ids": "in bags", "table": f"{sum(SMALL) / 1e6:.4g} M ids of {len(SMALL)}"}, inputs,
        {
            "eager": functools.partial(_in_bags, eager),
            "cuda": functools.partial(_in_bags, op, backend="cuda"),
        },
        shared=lambda draw: _table(SMALL, draw(1).device).storage(),
        spec=Spec(_in_bags(eager), lambda case, device: iter(()), outputs=("found", "rows")),
    )


def cells(quick: bool = False) -> Iterator[Cell | Lengths]:
    """Look-ups of a batch in all tables; of one table beside `index`; small batches beside eager; with another number
    of keys each time; building."""
    for ids in ("uniform",) if quick else ("uniform", "zipf", "half unknown"):
        yield _cell("bandwidth", ("searchsorted", "cuda"), ids=ids)
    if not quick:
        yield _cell("bandwidth", ("searchsorted", "cuda"), batch=2048)
    yield _cell("index", ("index", "cuda"), sizes=(COMPARED,))
    for batch in (64, 2048):
        yield _cell("auto", ("eager", "auto"), batch=batch, sizes=KAGGLE[5:10], waits=True)
    yield _lengths()
    # Building all tables and a batch's look-up, as its user waits for them: the look-up shows that it was built right.
    if not quick:
        yield _cell("build", ("cuda",), waits=True)
