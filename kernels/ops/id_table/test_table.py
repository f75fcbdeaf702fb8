"""IdTable against a Python dict, on every backend that this machine has."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ... import IdTable
from ...check.contract import DEVICE, GPU
from . import eager
from .conftest import (
    check_against,
    device_of,
    every_backend,
    fast_backend,
    parameters,
    table,
    tensor,
)
from .spec import EXTREMES


@every_backend
def test_the_kth_id_has_row_k_whatever_its_value(backend):
    vocabularies = [list(EXTREMES), [], [3, -1, 2**40], list(range(1000))[::-1]]
    t = table(vocabularies, backend)
    dicts = [{i: row for row, i in enumerate(ids, 1)} for ids in vocabularies]
    check_against(dicts, t, backend, others=[5, 2**62, -7])
    empty = tensor([], backend)
    assert [r.shape for r in t(empty, empty, backend=backend)] == [(0,), (0,)]
    for outside in (-1, 4, 2**31, -(2**31)):
        found, rows = t(tensor([0, -1], backend), tensor([outside] * 2, backend), backend=backend)
        assert not found.any()
        assert not rows.any()


@every_backend
def test_an_id_inserted_twice_keeps_its_first_row(backend):
    t = table([[], [10, 11]], backend)
    ids, tables = tensor([5, 10, 5, 6, 5, 6, 11], backend), tensor([0, 1, 0, 0, 0, 1, 1], backend)
    assert t.insert(ids, tables).tolist() == [1, 1, 1, 2, 1, 3, 2]
    assert t.insert(tensor([6, 7, 5], backend), tensor([0, 0, 0], backend)).tolist() == [2, 3, 1]
    rows = tensor([90, 91, 92, 93], backend)
    assert t.insert(tensor([8, 5, 8, 9], backend), tensor([0] * 4, backend), rows).tolist() == [90, 1, 90, 93]
    assert t.insert(tensor([4], backend), tensor([0], backend)).tolist() == [94]
    check_against([{5: 1, 6: 2, 7: 3, 8: 90, 9: 93, 4: 94}, {10: 1, 11: 2, 6: 3}], t, backend)
    many = tensor(list(range(500)) * 3, backend)
    assert t.insert(many[torch.randperm(1500)], torch.ones_like(many)).unique().numel() == 500


@every_backend
def test_full_tables(backend):
    """No empty slot is left, so that a search for an unknown id sees every bucket, and ends."""
    ids = list(range(0, 64 * 977, 977))
    t = table([ids, ids[:16]], backend, load_limit=1.0)
    assert t.load_factor == 1.0
    dicts = [{i: row for row, i in enumerate(known, 1)} for known in (ids, ids[:16])]
    check_against(dicts, t, backend, others=range(1, 100))
    gone = tensor(ids[10:20], backend)
    assert t.erase(gone, torch.zeros_like(gone)).all()
    for i in ids[10:20]:
        del dicts[0][i]
    check_against(dicts, t, backend, others=range(1, 100))
    assert t.insert(tensor([7], backend), tensor([0], backend)).tolist() == [65]
    check_against([dicts[0] | {7: 65}, dicts[1]], t, backend, others=range(8, 100))


@every_backend
def test_growth_in_mid_use(backend):
    """From nothing, in batches; the other table's ids stay where they are."""
    t, known = table([[], range(-50, 0)], backend), {}
    for start in range(0, 700, 90):
        ids = [i * 31 for i in range(start, start + 100)]  # ten of them again
        t.insert(tensor(ids, backend), tensor([0] * 100, backend))
        for i in ids:
            known.setdefault(i, len(known) + 1)
        check_against([known, {i: i + 51 for i in range(-50, 0)}], t, backend, others=[1, 2])
        assert max(n / s for n, s in zip(t.sizes, t.slots_of_tables, strict=True)) <= t.load_limit


@every_backend
def test_erased_slots_are_used_again(backend):
    """Churn at a constant size does not make the storage grow for ever."""
    t = table([range(200)], backend)
    for batch in range(1, 12):
        t.erase(tensor(range((batch - 1) * 200, batch * 200), backend), None)
        t.insert(tensor(range(batch * 200, batch * 200 + 200), backend), None)
    assert t.slots_of_tables[0] <= 512
    check_against([{i: i + 1 for i in range(2200, 2400)}], t, backend, others=range(0, 2200, 7))


@every_backend
def test_an_erased_slot_is_empty_where_its_bucket_has_another(backend):
    """No search has gone beyond such a bucket. So churn fills nothing, and the storage stays."""
    t = table([range(8)], backend, capacity=[100])
    tags = t.tags
    for turn in range(1, 30):
        ids = tensor(range(8 * turn, 8 * turn + 8), backend)
        t.insert(ids)
        assert t._filled == [16]
        t.erase(ids)
        assert t._filled == [8]
    assert t.tags is tags
    assert int((tags != eager.EMPTY).sum()) == 8


def keys_of_one_bucket(count: int, seed: int) -> list[int]:
    """Ids whose hash's upper 40 bits are zero: their search begins in the first bucket of any table."""
    mask = (1 << 64) - 1
    inverses = [pow(factor, -1, 1 << 64) for factor in (0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD)]
    keys = []
    for h in range(count):
        h ^= h >> 33
        for inverse in inverses:
            h = h * inverse & mask
            h ^= h >> 33
        h = (h - seed) & mask
        keys.append(h - (1 << 64) if h >> 63 else h)
    return keys


@fast_backend
def test_ten_thousand_keys_of_one_bucket(backend):
    """A thousand where each round of a search is a dozen calls of PyTorch."""
    count = 1000 if backend == "eager" else 10000
    ids = keys_of_one_bucket(count, seed=77)
    t = table([ids], backend, seeds=[77])
    assert (eager.first_bucket(tensor(ids, backend), 77, len(t.tags) // 16) == 0).all()
    others = keys_of_one_bucket(count + 10, 77)[count:]
    check_against([{i: row for row, i in enumerate(ids, 1)}], t, backend, others=others)
    even = tensor(ids[::2], backend)
    assert t.erase(even).all()
    check_against([{i: row for row, i in enumerate(ids, 1) if row % 2 == 0}], t, backend)


@every_backend
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_without_table_ids_a_column_is_of_a_table(backend, rows):
    t = table([[7, 8], [8], [9, 7, 8]], backend)
    ids = tensor([[8, 8, 8], [7, 7, 7], [9, 9, 9], [8, 0, 0], [-1, 8, 9]], backend)[:rows]
    found, numbers = t(ids, backend=backend)
    wanted = [[2, 1, 3], [1, 0, 2], [0, 0, 1], [2, 0, 0], [0, 1, 1]][:rows]
    assert numbers.tolist() == wanted
    assert found.tolist() == [[row > 0 for row in sample] for sample in wanted]
    t = table([[7, 8]], backend)  # one table: ids of any shape
    assert t(tensor([[[8, 1, 7]]], backend), backend=backend)[1].tolist() == [[[2, 0, 1]]]


def test_errors_of_the_table():
    with pytest.raises(ValueError, match="table 1: id 1 is given twice"):
        IdTable([[1], [1, 2, 1]])
    with pytest.raises(ValueError, match=r"load_limit must be above 0 and at most 1; got 1\.5"):
        IdTable([[1]], load_limit=1.5)
    with pytest.raises(ValueError, match="seeds must have a number for each of 1 tables; got 2"):
        IdTable([[1]], seeds=[1, 2])
    for wrong, error, message in (
        ([[1.5]], TypeError, r"vocabularies\[0\] must be int32 or int64; got float64"),
        ([[1], ["a", "b"]], TypeError, r"vocabularies\[1\] must be int32 or int64; got <U1"),
        ([[2**63]], TypeError, r'vocabularies\[0\] .*; got uint64, .*numpy\.asarray\(…\)\.view\("int64"\)'),
        ([np.ones(2, "uint64")], TypeError, r'vocabularies\[0\] .*; got uint64, .* are ids too: give view\("int64"\)'),
        ([torch.ones(2, dtype=torch.uint64)], TypeError, r"vocabularies\[0\] .* give view\(torch\.int64\)"),
        ([[2**70]], TypeError, r"vocabularies\[0\] must be int32 or int64; got object"),
        ([5, 6], TypeError, r"vocabularies\[0\] must be ids, int32 or int64 \[n\]; got int "),
        ([[[5], [6]]], ValueError, r"vocabularies\[0\] must be ids, int32 or int64 \[n\]; got int64 of shape \[2, 1\]"),
        ([None], TypeError, r"vocabularies\[0\] must be ids"),
        ([[[1], [2, 3]]], TypeError, r"vocabularies\[0\] must be ids"),
        ([torch.ones(2, dtype=torch.int64, device="meta")], ValueError, r"vocabularies\[0\] must have values"),
        (None, TypeError, "vocabularies must be a sequence, of the ids of each table; got NoneType"),
        ("ab", TypeError, "vocabularies must be a sequence, of the ids of each table; got str"),
    ):
        with pytest.raises(error, match=f"^IdTable: {message}"):
            IdTable(wrong)
    for name, wrong, error, message in (
        ("capacity", 5, TypeError, "must be a sequence of integers; got int"),
        ("capacity", ["a"], TypeError, r"must be an integer; got str"),
        ("capacity", [-1], ValueError, "must not be negative or NaN; got -1"),
        ("seeds", [1.5], TypeError, "must be an integer; got float"),
        ("load_limit", "0.5", TypeError, "must be a number; got str"),
        ("device", "gpu", ValueError, "must be a device; got 'gpu'"),
    ):
        with pytest.raises(error, match=rf"^IdTable: {name}(\[0\])? {message}"):
            IdTable([[1]], **{name: wrong})
    with pytest.raises(ValueError, match=r"backend must be one of auto, .*; got 'gpu'"):
        IdTable([[1]], backend="gpu")
    t = IdTable([[1], [2]])
    for ids in (torch.tensor([1]), torch.tensor([1, 2]), torch.tensor([[1], [2]]), torch.tensor([[[1, 2]]])):
        with pytest.raises(ValueError, match=r"table_ids must be given for ids .*: there are 2 tables, .*are \[B, 2\]"):
            t(ids)
    with pytest.raises(ValueError, match=r"ids and table_ids must be \[n\]; got \[1, 2\] and \[1, 2\]"):
        t.insert(torch.tensor([[1, 2]]))
    for outside in (-1, 2):
        with pytest.raises(ValueError, match=f"table_ids must be from 0 to 1; got {outside}"):
            t.insert(torch.tensor([1, 2]), torch.tensor([0, outside]))
    for rows, message in (
        ([0], "rows must be from 1 to 9223372036854775806; got 0"),
        ([2**63 - 1], "rows must be from 1 to .*; got 9223372036854775807"),
        ([1, 2], r"rows must be \[1\], like ids; got \[2\]"),
        ([1.0], "rows must be int32 or int64; got float32"),
    ):
        with pytest.raises(ValueError, match=message):
            t.insert(torch.tensor([9]), torch.tensor([0]), torch.tensor(rows))
    for arguments, name in ((([1],), "ids"), ((torch.tensor([1]), [0]), "table_ids")):
        for function in (t, t.insert, t.erase):
            with pytest.raises(TypeError, match=f"IdTable: {name} must be a tensor; got list"):
                function(*arguments)
    for wrong in (torch.tensor([1.0]), torch.tensor([1], dtype=torch.uint64)):
        for function in (t.insert, t.erase):
            with pytest.raises(TypeError, match="IdTable: ids must be int32 or int64; got"):
                function(wrong, torch.tensor([0]))
    for wrong, error in (("0", TypeError), (2, ValueError), (-1, ValueError)):
        with pytest.raises(error, match="IdTable: table must be"):
            t.items(wrong)
    assert t.sizes == [1, 1]


@every_backend
def test_ids_are_refused_where_rows_end(backend):
    """Rows go up to 2^63 - 2, so that a table's next row is an int64 too. What is refused changes nothing."""
    most, t = 2**63 - 2, table([[7], []], backend)
    assert t.insert(tensor([8], backend), tensor([1], backend), tensor([most - 2], backend)).tolist() == [most - 2]
    before, kept = t.storage(), {name: tensor.clone() for name, tensor in t.state().items()}
    # There are two rows left. The last ids would make the storage grow, too.
    for many in ([1, 2, 3], [1, 8, 2, 1, 3], list(range(100))):
        ids = tensor([*many, 99], backend)
        tables = tensor([1] * len(many) + [0], backend)
        new = len({*many} - {8})
        message = f"table 1: its next row is {most - 1}, and rows go up to {most}; {new} new ids have no room"
        with pytest.raises(ValueError, match=message):
            t.insert(ids, tables)
        assert all(now is then for now, then in zip(t.storage(), before, strict=True))
        assert all(torch.equal(tensor, kept[name]) for name, tensor in t.state().items())
    assert t.insert(tensor([1, 8, 2, 1, 99], backend), tensor([1, 1, 1, 1, 0], backend)).tolist() == [
        most - 1, most - 2, most, most - 1, 2
    ]
    assert t.insert(tensor([8, 1], backend), tensor([1, 1], backend)).tolist() == [most - 2, most - 1]  # none is new
    with pytest.raises(ValueError, match="table 1: its next row is 9223372036854775807"):
        t.insert(tensor([3], backend), tensor([1], backend))
    assert t.insert(tensor([3], backend), tensor([1], backend), tensor([5], backend)).tolist() == [5]
    again = table([[], []], backend)
    again.load(**t.state())
    check_against([{7: 1, 99: 2}, {8: most - 2, 1: most - 1, 2: most, 3: 5}], again, backend)


@settings(max_examples=5 if DEVICE.type == "cuda" else 40, deadline=None)  # eager waits for a GPU at every step
@given(st.lists(st.tuples(st.sampled_from("iel"), st.lists(st.sampled_from((*EXTREMES, *range(20))), max_size=40))))
def test_any_sequence_of_operations(steps):
    t, known, next_row = table([[]], "eager"), {}, 1
    for what, ids in steps:
        keys = tensor(ids, "eager")
        if what == "i":
            for i in ids:
                if i not in known:
                    known[i], next_row = next_row, next_row + 1
            assert t.insert(keys).tolist() == [known[i] for i in ids]
        elif what == "e":
            assert t.erase(keys).tolist() == [i in known for i in ids]
            for i in ids:
                known.pop(i, None)
        check_against([known], t, "eager", others=ids)


def against_a_dict(operations: int, backend: str) -> None:
    """Random inserts, erases and look-ups, by batches of up to 20,000, of ids that often come again."""
    draw, tables = np.random.default_rng(7), 3
    pick = random.Random(7)
    t = table([[]] * tables, backend)
    known, next_rows, done = {}, [1] * tables, 0  # by id · tables + table
    while done < operations:
        count = pick.randint(1, min(20000, operations - done))
        ids = draw.integers(-operations // 40 - 20, operations // 40 + 20, count) * 0x1234567891
        numbers = draw.integers(0, tables, count)
        keys, owners = (torch.from_numpy(a).to(device_of(backend)) for a in (ids, numbers))
        pairs = (ids * tables + numbers).tolist()
        what = pick.choices(("insert", "erase", "look up"), (4, 3, 3))[0]
        if what == "insert":
            for pair in pairs:
                if pair not in known:
                    n = pair % tables
                    known[pair], next_rows[n] = next_rows[n], next_rows[n] + 1
            assert t.insert(keys, owners).tolist() == [known[pair] for pair in pairs]
        elif what == "erase":
            assert t.erase(keys, owners).tolist() == [pair in known for pair in pairs]
            for pair in pairs:
                known.pop(pair, None)
        else:
            found, rows = t(keys, owners, backend=backend)
            assert found.tolist() == [pair in known for pair in pairs]
            assert rows.tolist() == [known.get(pair, 0) for pair in pairs]
        done += count
    assert sum(t.sizes) == len(known)
    for n in range(tables):
        ids, rows = t.items(n)
        assert all(known[i * tables + n] == row for i, row in zip(ids.tolist(), rows.tolist(), strict=True))


@fast_backend
def test_random_operations_agree_with_a_dict(backend):
    against_a_dict(60_000, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", parameters("cuda" if DEVICE.type == "cuda" else "cpp"), indirect=True)
def test_ten_million_random_operations_agree_with_a_dict(backend):
    against_a_dict(10_000_000, backend)


@GPU
@pytest.mark.sanitizer
def test_insertion_erasure_and_look_up_under_the_sanitizer():
    against_a_dict(10_000, "cuda")
