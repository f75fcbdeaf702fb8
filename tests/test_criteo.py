"""CriteoBatches: every row exactly once, in the promised order, as the promised numbers; and its errors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from data.cli import UserError
from data.criteo import COLUMNS, DENSE, IDS, LABEL, SCHEMA, SPARSE, CriteoBatches
from data.metadata import read_hash_size, read_metadata


def table(rows: int, seed: int = 0, first: int = 0) -> pa.Table:
    """Random rows; SPARSE_0 counts them from `first`, so that each can be recognised."""
    draw = np.random.default_rng(seed)
    columns = [pa.array(draw.integers(0, 2, rows), pa.int8())]
    columns += [pa.array(draw.integers(-3, 999, rows), mask=draw.random(rows) < 0.2) for _ in DENSE]
    columns += [pa.array(np.arange(first, first + rows))]
    columns += [pa.array(draw.integers(-1, 1 << 32, rows)) for _ in SPARSE[1:]]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """1,000 rows in three files with row groups of 64 rows."""
    path = tmp_path_factory.mktemp("criteo")
    for name, first, rows in (("a", 0, 300), ("b", 300, 101), ("c", 401, 599)):
        pq.write_table(table(rows, first, first), path / f"{name}.parquet", row_group_size=64)
    return path


def rows_of(batches) -> list[int]:
    return torch.cat([sparse[:, 0] for _, _, sparse in batches]).tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_values(directory, shuffle):
    whole = pq.read_table(directory).to_pandas()
    batches = list(CriteoBatches(directory, 64, shuffle=shuffle, window=200))
    labels, dense, sparse = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert (labels.dtype, dense.dtype, sparse.dtype) == (torch.float32, torch.float32, torch.int64)
    assert [len(batch[0]) for batch in batches] == [64] * 15 + [40]
    expected = whole.iloc[sparse[:, 0].numpy()]
    torch.testing.assert_close(labels.numpy(), expected[LABEL].to_numpy(np.float32))
    counts = expected[list(DENSE)].fillna(0).to_numpy(np.float64)
    torch.testing.assert_close(dense.double().numpy(), np.log(1 + np.maximum(counts, 0)), rtol=1e-6, atol=1e-6)
    assert (sparse.numpy() == expected[list(SPARSE)].to_numpy()).all()


def test_untransformed(directory):
    whole = pq.read_table(directory).to_pandas()
    _, dense, _ = next(iter(CriteoBatches(directory, 1000, transform=False, fill=-7.5)))
    assert (dense.numpy() == whole[list(DENSE)].fillna(-7.5).to_numpy(np.float32)).all()
    _, dense, _ = next(iter(CriteoBatches(directory, 1000, transform=False, fill=float("nan"))))
    assert (np.isnan(dense.numpy()) == whole[list(DENSE)].isna().to_numpy()).all()


def test_order(directory):
    assert rows_of(CriteoBatches(directory, 37)) == list(range(1000))
    orders = [rows_of(CriteoBatches(directory, 37, shuffle=True, seed=seed, window=150)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert all(sorted(order) == list(range(1000)) for order in orders)
    # It is a real shuffle: neighbours are neighbours no longer.
    assert np.mean(np.abs(np.diff(orders[0])) == 1) < 0.05


def test_without_labels(directory, tmp_path):
    """The same rows, whatever the file has for a label, and if it has none."""
    rows = pq.read_table(directory / "a.parquet")
    expected = list(CriteoBatches(directory / "a.parquet", 64))
    text = pa.array(["?"] * len(rows))
    for of_file in (rows, rows.drop_columns([LABEL]), rows.set_column(0, LABEL, text)):
        pq.write_table(of_file, tmp_path / "rows.parquet", row_group_size=50)
        batches = list(CriteoBatches(tmp_path / "rows.parquet", 64, labelled=False))
        assert all(labels.isnan().all() for labels, _, _ in batches)
        for pair in zip(batches, expected, strict=True):
            for ours, theirs in zip(*(batch[1:] for batch in pair), strict=True):
                assert torch.equal(ours, theirs)


def test_epochs(directory):
    batches = CriteoBatches(directory, 50, shuffle=True, seed=3)
    first, again = rows_of(batches), rows_of(batches)
    batches.set_epoch(1)
    second = rows_of(batches)
    batches.set_epoch(0)
    assert first == again == rows_of(batches) != second
    fresh = CriteoBatches(directory, 50, shuffle=True, seed=3)
    fresh.set_epoch(1)
    assert rows_of(fresh) == second


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [1, 3, 7])
def test_shards_are_disjoint_complete_and_equal(directory, shuffle, world_size):
    shards = [
        CriteoBatches(directory, 32, shuffle=shuffle, rank=rank, world_size=world_size, window=100)
        for rank in range(world_size)
    ]
    rows = [rows_of(shard) for shard in shards]
    assert sorted(row for shard in rows for row in shard) == list(range(1000))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1
    assert [shard.num_rows for shard in shards] == [len(r) for r in rows]
    assert [shard.num_batches for shard in shards] == [len(list(shard)) for shard in shards]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_dataloader_workers_read_each_row_once(directory, workers):
    loader = DataLoader(CriteoBatches(directory, 32, shuffle=True), batch_size=None, num_workers=workers)
    assert sorted(rows_of(loader)) == list(range(1000))


def test_persistent_workers_see_the_epoch(directory):
    batches = CriteoBatches(directory, 32, shuffle=True)
    loader = DataLoader(batches, batch_size=None, num_workers=2, persistent_workers=True)
    first = rows_of(loader)
    batches.set_epoch(1)
    assert first != rows_of(loader)
    batches.set_epoch(0)
    assert first == rows_of(loader)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(0, 90), min_size=1, max_size=3),
    batch=st.integers(1, 120),
    window=st.integers(1, 150),
    group=st.integers(1, 80),
    shuffle=st.booleans(),
    drop=st.booleans(),
    first=st.integers(0, 12),
)
def test_any_sizes(tmp_path_factory, rows, batch, window, group, shuffle, drop, first):
    path = tmp_path_factory.mktemp("sizes")
    for i, n in enumerate(rows):
        pq.write_table(table(n, i, sum(rows[:i])), path / f"{i}.parquet", row_group_size=group)
    batches = CriteoBatches(path, batch, shuffle=shuffle, window=window, drop_last=drop)
    got = list(batches)
    total = sum(rows)
    assert len(got) == batches.num_batches
    for expected, actual in zip(got[first:], batches.batches_from(first), strict=True):
        assert all(map(torch.equal, expected, actual))
    assert all(len(b[0]) == batch for b in got[: total // batch])
    if not drop and total:
        assert sorted(rows_of(got)) == list(range(total))


def test_batches_are_the_callers_own(directory):
    """The reader reuses its buffers: a batch that was kept must not change."""
    kept, copies = [], []
    for batch in CriteoBatches(directory, 10, window=30):
        kept.append(batch)
        copies.append([tensor.clone() for tensor in batch])
    assert all(torch.equal(a, b) for x, y in zip(kept, copies, strict=True) for a, b in zip(x, y, strict=True))


def test_stopping_early_ends_the_reader_thread(directory):
    before = set(threading.enumerate())
    for _ in range(3):
        next(iter(CriteoBatches(directory, 10, window=30)))
    for thread in set(threading.enumerate()) - before:
        thread.join(300)  # it may read on for the moment: who stops does not wait
        assert not thread.is_alive()


def test_parquet_of_other_writers(tmp_path):
    """Float columns, no nulls, one row group, extra columns: as pandas writes them."""
    frame = table(50).to_pandas().fillna(0).astype(dict.fromkeys((LABEL, *DENSE), np.float64))
    frame["extra"] = "text"
    frame.to_parquet(tmp_path / "lecture.parquet")
    labels, dense, sparse = next(iter(CriteoBatches(tmp_path / "lecture.parquet", 50)))
    assert labels.shape == (50,)
    assert dense.shape == (50, 13)
    assert sparse[:, 0].tolist() == list(range(50))


def test_null_ids_are_missing(tmp_path):
    columns = {name: table(3)[name] for name in COLUMNS} | {"SPARSE_4": pa.array([1, None, 2], pa.int32())}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert next(iter(CriteoBatches(tmp_path, 3)))[2][:, 4].tolist() == [1, -1, 2]


def bad(column: str, values: pa.Array) -> pa.Table:
    return table(5).set_column(COLUMNS.index(column), column, values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table(5).drop_columns(["SPARSE_3"]), "a.parquet: column SPARSE_3 is missing"),
        (table(5).drop_columns(["labels"]), "a.parquet: column labels is missing"),
        (table(5).append_column("DENSE_0", table(5)["DENSE_0"]), "a.parquet: column DENSE_0 is there 2 times"),
        (bad("SPARSE_1", pa.array(["x"] * 5)), "column SPARSE_1: expected an integer type, found string"),
        (bad("SPARSE_1", pa.array([0.5] * 5)), "column SPARSE_1: expected an integer type, found double"),
        (bad("DENSE_2", pa.array(["1"] * 5)), "column DENSE_2: expected a numeric type, found string"),
        (bad("labels", pa.array([0, 1, 0, 2, 1])), "row 3, column labels: expected 0 or 1, found 2"),
        (bad("labels", pa.array([0, None, 0, 1, 1])), "row 1, column labels: expected 0 or 1, found nan"),
        (bad("DENSE_0", pa.array([0.0, 1, 2, 3, np.inf])), "row 4, column DENSE_0: expected a finite number"),
        (bad("SPARSE_9", pa.array([0, 1 << 32, 0, 0, 0])), r"row 1, column SPARSE_9: expected an id in \[-1, 2\^32\)"),
        (bad("SPARSE_9", pa.array([0, 0, -2, 0, 0])), r"row 2, column SPARSE_9: .*, found -2"),
        (bad("SPARSE_9", pa.array([0, 0, 0, 0, (1 << 64) - 2], pa.uint64())), "row 4, .* found 18446744073709551614$"),
        (bad("SPARSE_9", pa.array([0, 0, 0, (1 << 64) - 1, 0], pa.uint64())), "row 3, .* found 18446744073709551615$"),
        (bad("SPARSE_9", pa.array([None, 0, 0, 1 << 63, None], pa.uint64())), "row 3, .* found 9223372036854775808$"),
        (bad("SPARSE_9", pa.array([1, 1, IDS, 1, 1], pa.uint64()).dictionary_encode()), "row 2, .* found 4294967296$"),
        (bad("SPARSE_9", pa.array([0, 0, 0, 0, (1 << 63) - 1])), r"row 4, .* found 9223372036854775807$"),
        (bad("SPARSE_9", pa.array([0, -128, 0, 0, 0], pa.int8())), "row 1, .* found -128$"),
        (bad("labels", pa.array([0, 1, (1 << 64) - 1, 0, 0], pa.uint64())), "row 2, .*, found 18446744073709551615$"),
        (bad("labels", pa.array([0, 1, 0, 255, 0], pa.uint8())), "row 3, .* 0 or 1, found 255$"),
        (bad("labels", pa.array([0, 1, 1 - 1e-12, 0, 0])), "row 2, .* 0 or 1, found 0.999999999999$"),
        (bad("labels", pa.array([0, 1, 0, 0, 1e-60])), "row 4, .* 0 or 1, found 1e-60$"),
        (bad("labels", pa.array([0, 1, 1, 0, 1]).cast(pa.decimal128(20))), "expected a numeric type, found decimal"),
        (bad("DENSE_5", pa.array([0, 1e39, 3, 4, 5])), r"row 1, .* within float32, at most 3.4e38, found 1e\+39$"),
    ],
)
def test_bad_parquet(tmp_path, content, message):
    pq.write_table(content, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        list(CriteoBatches(tmp_path, 2))


@pytest.mark.parametrize("type_", [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()], ids=str)
@pytest.mark.parametrize("is_dictionary", [False, True])
def test_integers_of_any_type(tmp_path, type_, is_dictionary):
    """As ids, counts and labels, in several chunks and row groups, with nulls: the same numbers."""
    most = int(min(np.iinfo(type_.to_pandas_dtype()).max, IDS - 1))
    ids, labels = [0, most, None, 7, most - 1], [0, 1, 1, 0, 1]
    chunks = [pa.array(values, type_) for values in (ids[:2], ids[2:])]
    column = pa.chunked_array([chunk.dictionary_encode() for chunk in chunks] if is_dictionary else chunks)
    rows = bad("SPARSE_9", column).set_column(5, DENSE[4], column).set_column(0, LABEL, pa.array(labels, type_))
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=3)
    batches = [*CriteoBatches(tmp_path, 4, transform=False)]
    actual, dense, sparse = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert actual.tolist() == labels
    assert sparse[:, 9].tolist() == [-1 if one is None else one for one in ids]
    assert dense[:, 4].tolist() == [float(np.float32(one or 0)) for one in ids]


def test_a_count_without_a_sign_is_no_negative_one(tmp_path):
    pq.write_table(bad("DENSE_2", pa.array([(1 << 64) - 1, 1 << 63, 0, 1, None], pa.uint64())), tmp_path / "a.parquet")
    [(_, dense, _)] = CriteoBatches(tmp_path, 5, transform=False)
    assert dense[:, 2].tolist() == [2.0**64, 2.0**63, 0, 1, 0]


def test_bad_paths_and_settings(tmp_path, directory):
    with pytest.raises(UserError, match="nowhere: no such file or directory"):
        CriteoBatches(tmp_path / "nowhere", 2)
    with pytest.raises(UserError, match=r"no \*.parquet file in it$"):
        CriteoBatches(tmp_path, 2)
    (tmp_path / "test").mkdir()
    with pytest.raises(UserError, match=rf"no \*.parquet file in it; name one of its splits, {tmp_path}/test$"):
        CriteoBatches(tmp_path, 2)
    (tmp_path / "a.parquet").write_bytes((directory / "a.parquet").read_bytes()[:-100])
    with pytest.raises(UserError, match=r"a.parquet: cannot be read as Parquet"):
        CriteoBatches(tmp_path, 2)
    for wrong in ({"batch_size": 0}, {"window": 0}, {"rank": 2, "world_size": 2}, {"rank": -1}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CriteoBatches(directory, **{"batch_size": 2, **wrong})


def test_damaged_pages(tmp_path):
    pq.write_table(table(5000), tmp_path / "a.parquet")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[200:4000] = b"\xff" * 3800
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(UserError, match=r"a.parquet: cannot be read as Parquet"):
        list(CriteoBatches(tmp_path, 100))


def test_memory_is_bounded_by_the_window(tmp_path):
    """600,000 rows are 160 MB as batches; reading them with a window of 20,000 (11 MB for two) must not take that."""
    part = table(100_000)
    with pq.ParquetWriter(tmp_path / "a.parquet", part.schema) as writer:
        for _ in range(6):
            writer.write_table(part, row_group_size=25_000)
    code = (
        "import resource, sys; from data.criteo import CriteoBatches;"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024;"
        "batches = CriteoBatches(sys.argv[1], 2048, shuffle=True, window=20_000);"
        "next(iter(batches)); before = peak(); n = sum(len(b[0]) for b in batches); print(n, peak() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parent.parent, timeout=300,
    )
    rows, grown = map(int, done.stdout.split())
    assert rows == 600_000
    assert grown < 60, f"{grown} MiB more after 600,000 rows than after the first batch"


METADATA = {name: {"cardinality": 2, "tokenizer_values": [7, 5]} for name in SPARSE}


def test_metadata(tmp_path):
    (tmp_path / "metadata.json").write_text(json.dumps(METADATA | {"more": 1}))
    for path in (tmp_path, tmp_path / "metadata.json"):
        features = read_metadata(path)
        assert list(features) == list(SPARSE)
        assert features["SPARSE_25"].tokenizer_values.tolist() == [7, 5]
        assert features["SPARSE_25"].cardinality == 2


def listed(directory: Path, ids: list[int], cardinality: int | None = None) -> None:
    """Metadata as data.preprocess writes it: the ids of each feature in a file of their own."""
    (directory / "ids").mkdir()
    size = len(ids) if cardinality is None else cardinality
    (directory / "metadata.json").write_text(json.dumps({name: {"cardinality": size} for name in SPARSE}))
    for name in SPARSE:
        pq.write_table(pa.table({"id": pa.array(ids, pa.uint32())}), directory / "ids" / f"{name}.parquet")


def test_ids_are_read_when_asked_for(tmp_path):
    listed(tmp_path, [7, (1 << 32) - 1, 0])
    feature = read_metadata(tmp_path)["SPARSE_3"]
    shutil.move(tmp_path / "ids", tmp_path / "away")
    assert feature.cardinality == 3
    with pytest.raises(UserError, match=r"SPARSE_3.parquet: not found; it lists the feature's ids"):
        _ = feature.tokenizer_values
    shutil.move(tmp_path / "away", tmp_path / "ids")
    assert feature.tokenizer_values.dtype == np.int64
    assert feature.tokenizer_values.tolist() == [7, (1 << 32) - 1, 0]
    assert feature.tokenizer_values is feature.tokenizer_values


@pytest.mark.parametrize(
    ("ids", "cardinality", "message"),
    [([1, 2], 3, "SPARSE_3.parquet: cardinality is 3, but there are 2"), ([1, 1], 2, "SPARSE_3.parquet: .* id twice")],
)
def test_files_of_ids_that_contradict_the_metadata(tmp_path, ids, cardinality, message):
    listed(tmp_path, ids, cardinality)
    with pytest.raises(UserError, match=message):
        _ = read_metadata(tmp_path)["SPARSE_3"].tokenizer_values


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (pa.array([5, IDS + 5]), r"SPARSE_3.parquet: expected ids in \[0, 2\^32\), found 4294967301"),
        (pa.array([5, -1]), "found -1"),
        (pa.array([5, (1 << 64) - 1], pa.uint64()), "found 18446744073709551615"),
        (pa.array([5, None]), "expected ids of an integer type and no null, found float64"),
        (pa.array([5.0, 6.5]), "expected ids of an integer type and no null, found float64"),
        (pa.array(["5", "6"]), "expected ids of an integer type and no null, found object"),
    ],
)
def test_lists_of_what_is_no_id(tmp_path, ids, message):
    listed(tmp_path, [1, 2])
    pq.write_table(pa.table({"id": ids}), tmp_path / "ids" / "SPARSE_3.parquet")
    with pytest.raises(UserError, match=message):
        _ = read_metadata(tmp_path)["SPARSE_3"].tokenizer_values


def test_a_damaged_file_of_ids(tmp_path):
    listed(tmp_path, [1, 2])
    (tmp_path / "ids" / "SPARSE_3.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"SPARSE_3.parquet: cannot be read as a list of ids"):
        _ = read_metadata(tmp_path)["SPARSE_3"].tokenizer_values


@pytest.mark.parametrize("content", [b"Id,label,I1\n", b"0\t1\t2\n", b"\x1f\x8b\x08\x00"])
def test_raw_data_instead_of_a_data_set(tmp_path, content):
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"train.csv: not metadata; run data.preprocess on it first and name its --out"):
        read_metadata(tmp_path / "train.csv")


def test_a_directory_below_the_data_set(tmp_path):
    listed(tmp_path, [1, 2])
    with pytest.raises(UserError, match=f"ids/metadata.json: not found; name {tmp_path}, which holds it"):
        read_metadata(tmp_path / "ids")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({k: v for k, v in METADATA.items() if k != "SPARSE_7"}, "feature SPARSE_7 is missing"),
        (METADATA | {"SPARSE_7": {"tokenizer_values": [1]}}, "SPARSE_7: expected the field cardinality, from 0 to 2"),
        (METADATA | {"SPARSE_7": {"cardinality": -1}}, "SPARSE_7: expected the field cardinality"),
        (METADATA | {"SPARSE_7": 3}, "SPARSE_7: expected the field cardinality, from 0 to 2.32; found 3"),
        (METADATA | {"SPARSE_7": {"cardinality": 3, "tokenizer_values": [1, 2]}}, "SPARSE_7: cardinality is 3, but"),
        (METADATA | {"SPARSE_7": {"cardinality": 2, "tokenizer_values": [1, 1]}}, "SPARSE_7: holds an id twice"),
        (METADATA | {"SPARSE_7": {"cardinality": 1, "tokenizer_values": [1 << 32]}}, "SPARSE_7: tokenizer_values: exp"),
        (METADATA | {"SPARSE_7": {"cardinality": 1, "tokenizer_values": ["a"]}}, "SPARSE_7: tokenizer_values: exp"),
        ([], "expected an object"),
        (None, "metadata.json: not found"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON: maximum recursion depth"),
        ('{"SPARSE_0": ' + "9" * 5000 + "}", "not JSON: Exceeds the limit"),
    ],
)
def test_bad_metadata(tmp_path, content, message):
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "metadata.json").write_text(text)
    with pytest.raises(UserError, match=message):
        read_metadata(tmp_path)


def test_what_ids_were_taken_modulo(tmp_path):
    file = tmp_path / "metadata.json"
    for text, size in (("{}", 0), ('{"hash_size": 37}', 37)):
        file.write_text(text)
        assert read_hash_size(tmp_path) == size
    for wrong in ("-1", "true", '"37"', "4294967297"):
        file.write_text(f'{{"hash_size": {wrong}}}')
        with pytest.raises(UserError, match=r"metadata.json: hash_size: expected 1 to"):
            read_hash_size(tmp_path)
