"""Raw files to Parquet: the same rows as a plain reading gives, and a clear error for every malformed line."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import os
import pty
import re
import subprocess
import sys
import tarfile
import termios
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from raw import raw_fields, tsv

pytest.importorskip("loguru")
pytest.importorskip("polars")
from data import dataset, parse, raw, vocabulary
from data import preprocess as module
from data.cli import UserError
from data.criteo import COLUMNS, DENSE, LABEL, SCHEMA, SPARSE, SPLITS, CriteoBatches
from data.dataset import write_dataset
from data.metadata import read_metadata
from data.preprocess import preprocess
from data.raw import RAW
from data.schema import schema_of
from kernels.check import fresh
from model.hashing import Hash, make_hash


def plain(rows: list[list[str]]) -> list[list[int | None]]:
    """The reference: Python's own conversions, field by field."""
    return [
        [int(row[0]), *(int(v) if v else None for v in row[1:14]), *(int(v, 16) if v else -1 for v in row[14:])]
        for row in rows
    ]


def written(directory: Path, split: str) -> list[list[int | None]]:
    table = pq.read_table(directory / split)
    return [list(row) for row in zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True)]


def everything(directory: Path) -> list[list[int | None]]:
    return [row for split in SPLITS for row in written(directory, split)]


def run(tmp_path: Path, content: bytes, name: str = "train.txt", **options) -> Path:
    (tmp_path / name).write_bytes(content)
    preprocess([tmp_path / name], tmp_path / "out", **options)
    return tmp_path / "out"


def counted(rows: list[list[str]], feature: int) -> list[tuple[int, int]]:
    """The reference: (id, count) of the rows' feature, most frequent first, equal counts by id."""
    counts = Counter(int(row[14 + feature], 16) for row in rows if row[14 + feature])
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def listed(directory: Path, name: str) -> list[tuple[int, int]]:
    table = pq.read_table(directory / "ids" / f"{name}.parquet")
    return list(zip(table["id"].to_pylist(), table["count"].to_pylist(), strict=True))


def error(tmp_path: Path, content: bytes, name: str = "train.txt") -> str:
    with pytest.raises(UserError) as caught:
        run(tmp_path, content, name)
    assert not [path for path in tmp_path.iterdir() if "out" in path.name], "something half-written was left"
    return str(caught.value).replace(f"{tmp_path}/", "")


def command(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "data.preprocess", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, cwd=Path(__file__).parent.parent, **options,
    )


def test_rows_order_splits_and_metadata(tmp_path, monkeypatch):
    monkeypatch.setattr(raw, "BLOCK", 5000)  # many blocks and parts
    rows = raw_fields(1400)
    out = run(tmp_path, tsv(rows))
    assert everything(out) == plain(rows)
    assert [len(written(out, split)) for split in SPLITS] == [1200, 100, 100]
    assert pq.read_schema(next((out / "train").iterdir())).equals(SCHEMA)
    metadata = json.loads((out / "metadata.json").read_text())
    assert metadata["rows"] == {"train": 1200, "validation": 100, "test": 100}
    for i, name in enumerate(SPARSE):
        expected = counted(rows[:1200], i)
        assert listed(out, name) == expected
        assert metadata[name] == {"cardinality": len(expected), "present": sum(n for _, n in expected)}
    assert set(os.listdir(out)) == {*SPLITS, "ids", "metadata.json"}


def test_min_count(tmp_path):
    rows = raw_fields(700)
    out = run(tmp_path, tsv(rows), min_count=12)
    for i, feature in enumerate(read_metadata(out).values()):
        assert feature.tokenizer_values.tolist() == [v for v, n in counted(rows[:600], i) if n >= 12]


@pytest.mark.parametrize("files", [1, 2, 3])
def test_counting_by_groups_of_files(tmp_path, monkeypatch, files):
    monkeypatch.setattr(vocabulary, "FILES", files)
    monkeypatch.setattr(raw, "BLOCK", 5000)
    rows = raw_fields(1400, ids=300)
    features = read_metadata(run(tmp_path, tsv(rows)))
    for i, name in enumerate(SPARSE):
        assert features[name].tokenizer_values.tolist() == [v for v, _ in counted(rows[:1200], i)]


def test_hash_size(tmp_path):
    rows = raw_fields(1400)
    out = run(tmp_path, tsv(rows), hash_size=37)
    hashed = [row[:14] + [value if value < 0 else value % 37 for value in row[14:]] for row in plain(rows)]
    assert everything(out) == hashed
    assert pq.read_schema(next((out / "train").iterdir())).equals(SCHEMA)
    assert json.loads((out / "metadata.json").read_text())["hash_size"] == 37
    for i, feature in enumerate(read_metadata(out).values()):
        assert set(feature.tokenizer_values.tolist()) == {row[14 + i] for row in hashed[:1200]} - {-1}
    with pytest.raises(ValueError, match="hash_size: expected 1 to"):
        run(tmp_path, tsv(rows), hash_size=0)


def test_hash_size_of_all_ids_takes_no_memory_for_them(tmp_path):
    """A bit for each of the ids would be 512 MiB; what is counted is the rows' ids."""
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(140)))
    code = (
        "import re, sys; from data import preprocess as p\n"
        "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "before = peak(); p.main(sys.argv[1:]); print('grown by', peak() - before)"
    )
    done = fresh.run(code, tmp_path / "train.txt", "--out", tmp_path / "out", "--hash-size", str(1 << 32))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("grown by ")[1]) < 512 * 1024


def test_hash_size_of_real_rows_gives_each_result_its_row(tmp_path, criteo_tsv):
    """As MLPerf's max_ind_range does; the hash modulus uses some 63 % of the rows of a large table, as it says."""
    preprocess([criteo_tsv], tmp_path / "out", hash_size=40_000_000)
    used = {kind: 0 for kind in (Hash.SORTED, Hash.MODULUS)}
    results = 0
    for name, feature in read_metadata(tmp_path / "out").items():
        ids = pq.read_table(tmp_path / "out" / "train", columns=[name])[name].to_numpy()
        ids = torch.from_numpy(ids[ids >= 0])
        results += len(ids.unique())
        assert feature.cardinality == len(ids.unique())
        for kind in used:
            used[kind] += len(make_hash(kind, feature.cardinality, feature.tokenizer_values)(ids).unique())
    assert used[Hash.SORTED] == results == 30_669
    assert used[Hash.MODULUS] / results == pytest.approx(0.63, abs=0.02)


def test_random_split_is_repeatable_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(raw, "BLOCK", 20000)
    rows = raw_fields(2800)
    (tmp_path / "train.txt").write_bytes(tsv(rows))
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        preprocess([tmp_path / "train.txt"], tmp_path / name, split="random", seed=seed)
    def key(row):
        return [(-9, 0)[value is not None] if value is None else value for value in row]

    assert sorted(everything(tmp_path / "a"), key=key) == sorted(plain(rows), key=key)
    assert everything(tmp_path / "a") == everything(tmp_path / "b") != everything(tmp_path / "c")
    for split, share in zip(SPLITS, (12 / 14, 1 / 14, 1 / 14), strict=True):
        assert abs(len(written(tmp_path / "a", split)) / 2800 - share) < 0.03


@pytest.mark.parametrize("rows", [1, 2, 13, 14])
def test_few_rows(tmp_path, rows):
    out = run(tmp_path, tsv(raw_fields(rows)))
    assert everything(out) == plain(raw_fields(rows))
    assert all(any((out / split).glob("*.parquet")) for split in SPLITS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_line_ends_and_compression(tmp_path, end, last, pack):
    content = tsv(raw_fields(30), end)
    content = content if last else content.removesuffix(end.encode())
    assert everything(run(tmp_path, pack(content))) == plain(raw_fields(30))


def test_csv_header_in_any_case_and_order(tmp_path):
    rows = raw_fields(30)
    order = [39, 0, *range(1, 39)]
    header = ["Id", *(RAW[i].upper() if i % 2 else RAW[i].lower() for i in order)]
    lines = [[str(n), *(row[i] for i in order)] for n, row in enumerate(rows)]
    content = "\n".join(",".join(line) for line in [header, *lines])
    assert everything(run(tmp_path, content.encode(), "train.csv")) == plain(rows)


def as_csv(header: list[str], rows: list[list[str]]) -> bytes:
    return "".join(",".join(line) + "\n" for line in [header, *rows]).encode()


@pytest.mark.parametrize("index", ["", "Unnamed: 0"])
def test_csv_as_pandas_writes_it(tmp_path, index):
    """A first column without a name (which pandas reads as Unnamed: 0), and quotes around what is text."""
    rows = raw_fields(30)
    quoted = [[*row[:14], *(f'"{value}"' for value in row[14:])] for row in rows]
    content = as_csv([f'"{name}"' for name in (index, *RAW)], [[f'"{n}"', *row] for n, row in enumerate(quoted)])
    assert everything(run(tmp_path, content, "train.csv")) == plain(rows)


def test_quoted_values_below_a_header_without_quotes(tmp_path):
    rows = raw_fields(30)
    content = as_csv(list(RAW), [[f'"{value}"' for value in row] for row in rows])
    assert everything(run(tmp_path, content, "train.csv")) == plain(rows)


def test_a_bad_line_of_quoted_csv(tmp_path):
    rows = raw_fields(9)
    rows[4][14] = '"68fd"1e64"'
    message = error(tmp_path, as_csv([f'"{name}"' for name in RAW], rows))
    assert message == """train.txt:6: quotes that do not fit: ',' expected after '"'"""


def test_a_header_and_one_row_without_a_final_newline(tmp_path):
    rows = raw_fields(1)
    assert everything(run(tmp_path, as_csv(list(RAW), rows).removesuffix(b"\n"), "train.csv")) == plain(rows)


def test_an_unterminated_last_row_straddles_a_read(tmp_path, monkeypatch):
    rows = raw_fields(60)
    content = tsv(rows).removesuffix(b"\n")
    # The last read gives the row's last 7 bytes, in which there is no newline.
    first = content.index(b"\n") + 1
    monkeypatch.setattr(raw, "BLOCK", len(content) - first - 7)
    assert everything(run(tmp_path, content)) == plain(rows)


@pytest.mark.parametrize("blank", [b"\n", b"\r\n\r\n", b"\n" * 9000])
def test_blank_lines_at_the_end_are_no_rows(tmp_path, monkeypatch, blank):
    monkeypatch.setattr(raw, "BLOCK", 4000)
    rows = raw_fields(30)
    assert everything(run(tmp_path, tsv(rows) + blank)) == plain(rows)
    assert "train.txt:31: the line is empty" in error_in(tmp_path / "again", tsv(rows) + blank + tsv(rows))


def error_in(directory: Path, content: bytes) -> str:
    directory.mkdir()
    return error(directory, content)


def test_whole_numbers_written_as_floats(tmp_path):
    rows = raw_fields(30)
    floats = [[row[0] + ".0", *(v and v + ".0" for v in row[1:14]), *row[14:]] for row in rows]
    assert everything(run(tmp_path, tsv(floats))) == plain(rows)


def test_several_files_in_the_order_given(tmp_path):
    rows = raw_fields(60)
    (tmp_path / "day_1").write_bytes(tsv(rows[:35]))
    (tmp_path / "day_0").write_bytes(gzip.compress(tsv(rows[35:])))
    preprocess([tmp_path / "day_1", tmp_path / "day_0"], tmp_path / "out")
    assert everything(tmp_path / "out") == plain(rows)


def test_short_and_upper_case_categories(tmp_path):
    rows = raw_fields(30)
    for n, row in enumerate(rows):
        row[14], row[15] = f"{n:x}", row[15].upper()
    assert everything(run(tmp_path, tsv(rows))) == plain(rows)


def test_real_rows(tmp_path, criteo_tsv):
    rows = [line.split("\t") for line in criteo_tsv.read_text().splitlines()]
    preprocess([criteo_tsv], tmp_path / "out")
    assert everything(tmp_path / "out") == plain(rows)
    assert [len(written(tmp_path / "out", split)) for split in SPLITS] == [6171, 514, 515]


BAD = {  # name → (index of the field, what stands there, what the message must say)
    "non-hex category": (14 + 2, "68fd1eg4", "field C3: expected hexadecimal digits, found '68fd1eg4'"),
    "id of 2^32": (14, "100000000", "field C1: expected an id below 2^32 (8 hex digits), found '100000000'"),
    "count with a fraction": (3, "1.5", "field I3: expected a whole number, found '1.5'"),
    "count that is a word": (13, "many", "field I13: expected a whole number, found 'many'"),
    "count in hexadecimal": (1, "0x10", "field I1: expected a whole number, found '0x10'"),
    "count with an exponent": (1, "1e3", "field I1: expected a whole number, found '1e3'"),
    "count that is not a number": (
        1, "nan", "field I1: expected a whole number, found 'nan' (a missing value? then say missing = [\"nan\"] in a "
        "--schema)"
    ),
    "category that is missing": (
        14, "\\N", "field C1: expected hexadecimal digits, found '\\\\N' (a missing value? then say missing = "
        '["\\\\N"] in a --schema)'
    ),
    "label that is missing": (0, "NULL", "field label: expected 0 or 1, found 'NULL'"),
    "count of 2^63": (2, str(1 << 63), "field I2: expected a 64-bit number, found '9223372036854775808'"),
    "label 2": (0, "2", "field label: expected 0 or 1, found '2'"),
    "label -1": (0, "-1", "field label: expected 0 or 1, found '-1'"),
    "no label": (0, "", "field label: expected 0 or 1, found ''"),
    "label that is a word": (0, "yes", "field label: expected 0 or 1, found 'yes'"),
    "field too many": (5, "1\t2", "expected 40 tab-separated fields, found 41"),
    "carriage return within": (14, "68fd\r1e6", "field C1: expected hexadecimal digits, found '68fd\\r1e6'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_line(tmp_path, monkeypatch, case):
    monkeypatch.setattr(raw, "BLOCK", 2000)  # the line is in a later block
    column, value, message = BAD[case]
    rows = raw_fields(60)
    rows[40][column] = value
    assert error(tmp_path, tsv(rows)) == f"train.txt:41: {message}"


def test_bad_lines_of_other_lengths(tmp_path):
    rows = [tsv([row]) for row in raw_fields(9)]
    assert error(tmp_path, b"".join([*rows[:4], b"\n", *rows[4:]])) == "train.txt:5: the line is empty"
    assert error(tmp_path, b"".join([*rows, b"0\t1\t2"])) == "train.txt:10: expected 40 tab-separated fields, found 3"
    unlabelled = tsv([row[1:] for row in raw_fields(9)])
    assert "train.txt:1: expected 40 tab-separated fields, found 39; this looks like Kaggle's unlabelled" in error(
        tmp_path, unlabelled
    )
    later = [*rows[:5], rows[5].partition(b"\t")[2], *rows[6:]]  # one label is missing, but the file has labels
    assert error(tmp_path, b"".join(later)) == "train.txt:6: expected 40 tab-separated fields, found 39"
    assert "train.txt:3: not UTF-8" in error(tmp_path, b"".join([*rows[:2], rows[2][:-1] + b"\xff\n", *rows[3:]]))


def test_bad_files(tmp_path, monkeypatch):
    monkeypatch.setattr(raw, "BLOCK", 600_000)
    packed = gzip.compress(tsv(raw_fields(500)))
    assert error(tmp_path, b"") == "train.txt: empty; expected Criteo rows"
    assert error(tmp_path, b"", "train.txt.gz") == "train.txt.gz: empty; expected Criteo rows"
    assert error(tmp_path, gzip.compress(b"")) == "train.txt: empty; expected Criteo rows"
    assert "truncated or damaged gzip file" in error(tmp_path, packed[: len(packed) // 2])
    assert "truncated or damaged gzip file" in error(tmp_path, packed[:-4])
    assert "truncated or damaged gzip file" in error(tmp_path, packed[:900] + b"\0\0\0\0" + packed[904:])
    header = ",".join(RAW)
    assert error(tmp_path, header.replace("I7,", "").encode() + b"\n") == "train.txt:1: column I7 is missing"
    assert "column label is missing; unlabelled data" in error(tmp_path, header.replace("label", "Id").encode())
    numbers = b"\t".join(b"%d" % i for i in range(40)) + b"\n"
    assert "train.txt:1: a header of numbers, as pandas writes" in error(tmp_path, numbers + tsv(raw_fields(3)))
    assert "column 'c26' stands there twice" in error(tmp_path, header.encode() + b",C26\n")
    row = tsv(raw_fields(1))
    assert "train.txt:2: no end of line within 1,2" in error(tmp_path, row + b"0" * 1_200_000)
    lines = as_csv(list(RAW), []) + b"\n" * 1_100_000
    assert error(tmp_path, lines) == "train.txt:2: nothing but ends of lines in 1,100,000 bytes; expected Criteo rows"
    assert "or a CSV header label,I1" in error(tmp_path, tsv(raw_fields(3)).replace(b"\t", b","))
    assert error(tmp_path, header.encode() + b"\n") == "no rows in the input"
    with pytest.raises(UserError, match="nowhere: no such file"):
        preprocess([tmp_path / "nowhere"], tmp_path / "out")


def test_bad_lines_skipped_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(raw, "BLOCK", 3000)
    rows = raw_fields(60)
    bad = {7: tsv([rows[7][1:]]), 8: b"\n", 33: tsv([[*rows[33][:-1], "xyz"]])}
    (tmp_path / "train.txt").write_bytes(b"".join(bad.get(n, tsv([row])) for n, row in enumerate(rows)))
    _, skipped = preprocess([tmp_path / "train.txt"], tmp_path / "out", on_bad_line="skip")
    assert skipped == 3
    assert everything(tmp_path / "out") == plain([row for n, row in enumerate(rows) if n not in bad])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 39),
            st.text(alphabet="0123456789abcdefxX.-+ \x0b\teE_nif\"'\r", max_size=10),
        ),
        min_size=1,
        max_size=2,
    )
)
def test_what_the_fast_parser_accepts_the_line_by_line_one_reads_the_same(changes):
    layout = raw.Layout("\t", COLUMNS)
    rows = raw_fields(3)
    for row, column, value in changes:
        rows[row][column] = value
    try:
        table = parse._parse(tsv(rows), layout)
    except parse._Rejected:
        return  # the other one has the last word
    lines = tsv(rows).removesuffix(b"\n").split(b"\n")
    read = [raw.read_line(line, number, layout) for number, line in enumerate(lines, 1)]
    assert table.to_dicts() == read


@pytest.mark.parametrize("column", [0, 5, 14])
def test_the_fast_parser_accepts_what_is_usual(column):
    """So that the test above compares something: no ordinary value is left to the slow one."""
    rows = raw_fields(100)
    rows[50][column] = {0: "1.0", 5: "-12.00", 14: "00ABcd"}[column]
    assert len(parse._parse(tsv(rows), raw.Layout("\t", COLUMNS))) == 100


def test_unusual_lines_that_are_right_are_kept(tmp_path):
    """A carriage return at the end of one line only, and an Id with a plus sign, are read line by line."""
    rows = raw_fields(40)
    ids = [["a+b", *row] for row in rows]
    content = as_csv(["Id", *RAW], ids).replace(b"\n", b"\r\n", 3)
    assert everything(run(tmp_path, content, "train.csv")) == plain(rows)


def test_skipping_reads_few_lines_one_by_one(tmp_path, monkeypatch):
    """In a block with one bad line the others are still parsed fast: at most 1 in 20 goes through read_line."""
    rows = raw_fields(8000)
    rows[5000][20] = "xyz"
    seen = []
    monkeypatch.setattr(parse, "read_line", lambda *a: seen.append(a[1]) or raw.read_line(*a))
    (tmp_path / "train.txt").write_bytes(tsv(rows))
    _, skipped = preprocess([tmp_path / "train.txt"], tmp_path / "out", on_bad_line="skip")
    assert skipped == 1
    assert 5001 in seen
    assert len(seen) <= 400
    assert everything(tmp_path / "out") == plain(rows[:5000] + rows[5001:])


def archive(kind: str, path: Path) -> bytes:
    """The raw rows as people pack them."""
    content = tsv(raw_fields(30))
    if kind == "utf-16":
        return content.decode().encode(kind)
    if kind == "zip":
        with zipfile.ZipFile(path / "a.zip", "w") as packed:
            packed.writestr("train.txt", content)
        return (path / "a.zip").read_bytes()
    if kind in ("tar", "tar.gz"):
        (path / "content").write_bytes(content)
        with tarfile.open(path / "a.tar", "w:gz" if kind == "tar.gz" else "w") as packed:
            packed.add(path / "content", "train.txt")
        return (path / "a.tar").read_bytes()
    if kind == "parquet":
        pq.write_table(SCHEMA.empty_table(), path / "a.parquet")
        return (path / "a.parquet").read_bytes()
    if kind in ("npy", "npz"):
        (np.save if kind == "npy" else np.savez)(path / f"a.{kind}", np.arange(40))
        return (path / f"a.{kind}").read_bytes()
    if kind in ("arrow", "stream", "orc"):
        table, to = pa.table({"label": [0, 1]}), path / "a"
        if kind == "orc":
            orc.write_table(table, to)
        else:
            with (pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream)(to, table.schema) as writer:
                writer.write_table(table)
        return to.read_bytes()
    if kind == "xlsx":
        with zipfile.ZipFile(path / "a.xlsx", "w") as packed:
            packed.writestr("[Content_Types].xml", "<Types/>")
        return (path / "a.xlsx").read_bytes()
    if kind in TEXTS:
        return TEXTS[kind]
    return {
        "bz2": bz2.compress, "xz": lzma.compress, "zst": lambda c: b"\x28\xb5\x2f\xfd" + c,
        "gz.gz": lambda c: gzip.compress(gzip.compress(c)),
    }[kind](content)


TEXTS = {
    "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n",
    "html": b"\n<!DOCTYPE html>\n<html lang='en'><body>Sign in, please\n",
    "json": b'{"label": 1, "I1": 2}\n{"label": 0, "I1": 3}\n',
    "json_array": b'[\n {"label": 1, "I1": 2}\n]\n',
    "xml": b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("utf-16", "UTF-16; convert it (iconv -f UTF-16 -t UTF-8)"),
        ("tar", "a tar archive; unpack it (tar xf) and name the files in it"),
        ("tar.gz", "a tar archive; unpack it (tar xf) and name the files in it"),
        ("zip", "a zip archive; unpack it (unzip) and name the files in it"),
        ("bz2", "compressed with bzip2; pipe it (bunzip2 -c FILE | … /dev/stdin)"),
        ("xz", "compressed with xz; pipe it (unxz -c FILE | … /dev/stdin)"),
        ("zst", "compressed with zstd; pipe it (unzstd -c FILE | … /dev/stdin)"),
        ("parquet", "Parquet; name the text that Criteo published"),
        ("gz.gz", "compressed with gzip; unpack it (gunzip)"),
        ("npy", "a NumPy array (.npy); write its rows as CSV or Parquet"),
        ("npz", "NumPy arrays (.npz); write their rows as CSV or Parquet"),
        ("xlsx", "an Office file (.xlsx); save it as CSV"),
        ("arrow", "Arrow's format (.arrow, .feather); write its rows as CSV or Parquet"),
        ("stream", "Arrow's format (.arrow, .feather); write its rows as CSV or Parquet"),
        ("orc", "ORC; write its rows as CSV or Parquet"),
        ("lfs", "a Git LFS pointer; fetch the file itself (git lfs pull)"),
        ("html", "an HTML page; a failed download leaves one; fetch it again"),
        ("json", "JSON; write its rows as CSV or Parquet"),
        ("json_array", "JSON; write its rows as CSV or Parquet"),
        ("xml", "XML; a failed download leaves some; fetch it again, or write rows as CSV"),
    ],
)
def test_archives_are_named(tmp_path, kind, message):
    (tmp_path / "pack").mkdir()
    content = archive(kind, tmp_path / "pack")
    assert error(tmp_path, content, "dac") == f"dac: {message}"
    if kind not in ("parquet", "tar.gz"):  # under a name that says that it is Parquet
        (tmp_path / "dac.parquet").write_bytes(content)
        with pytest.raises(UserError) as caught:
            CriteoBatches(tmp_path / "dac.parquet", 2)
        assert str(caught.value) == f"{tmp_path}/dac.parquet: {message}"


def test_what_begins_as_another_format_may_be_rows(tmp_path):
    """A header, and a column that is left out, may look like JSON; and a file's first lines are not read where a schema
    skips them."""
    form = {"columns": {"label": "y", "text": ["t"]}}
    for head in ('{"a"},y,t', "[[,y,t", "ORC,y,t", "Rar!,y,t"):
        (tmp_path / "rows.csv").write_text(head.replace('"', "") + "\nx,1,Ulm\n")
        [block] = raw.blocks(tmp_path / "rows.csv", schema=schema_of(form, "s"))
        assert len(parse.parse(block)) == 1
    (tmp_path / "rows.csv").write_text('{"made": "today"}\ny,t\n1,Ulm\n')
    [block] = raw.blocks(tmp_path / "rows.csv", schema=schema_of({"file": {"skip": 1}, **form}, "s"))
    assert len(parse.parse(block)) == 1


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "days").mkdir()
    with pytest.raises(UserError, match=r"/days: is a folder; name the files in it$"):
        preprocess([tmp_path / "days"], tmp_path / "out")


def test_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dataset.pq, "write_table", full)
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(20)))
    with pytest.raises(OSError, match="No space left"):
        preprocess([tmp_path / "train.txt"], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt"]


def test_file_size_limit_at_the_command_line(tmp_path):
    """A real failing write: the kernel refuses files over 64 KiB."""
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(7000, ids=5000)))
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536));"
        "from data.preprocess import main; main(sys.argv[1:])"
    )
    done = fresh.run(code, tmp_path / "train.txt", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert f"data.preprocess: {tmp_path}/out: File too large; what was written there is removed" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt"]


def test_command_line(tmp_path, capsys):
    rows = raw_fields(60)
    rows[20][3] = "1.5"
    (tmp_path / "train.txt").write_bytes(tsv(rows))
    bad = command_error(capsys, tmp_path / "train.txt", "--out", tmp_path / "out")
    assert f"data.preprocess: {tmp_path}/train.txt:21: field I3: expected a whole number, found '1.5'" in bad
    good = command(tmp_path / "train.txt", "--out", tmp_path / "out", "--on-bad-line", "skip")
    assert good.returncode == 0, good.stderr
    assert "skipped 1 bad lines" in good.stdout
    assert re.fullmatch(r"WARNING: skipped .*\n", good.stderr)  # no progress bar in a log
    for wrong in (["--min-count", "0"], ["--split", "sideways"], ["--workers", "0"], ["--hash-size", "0"],
                  ["--seed", "-1"]):
        assert command_error(capsys, tmp_path / "train.txt", "--out", tmp_path / "new", *wrong)


def test_progress_on_a_terminal(tmp_path):
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(60)))
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 200))
    arguments = [sys.executable, "-m", "data.preprocess", tmp_path / "train.txt", "--out", tmp_path / "out"]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=end, cwd=Path(__file__).parent.parent, timeout=300)
    assert done.returncode == 0
    assert b"rows/s" in os.read(terminal, 1 << 16)
    os.close(end)
    os.close(terminal)


def test_nobody_reads_what_it_says(tmp_path):
    """As with `| head -0`: the data set is written all the same."""
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(60)))
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "data.preprocess", tmp_path / "train.txt", "--out", tmp_path / "out"]
    done = subprocess.run(
        arguments, stdout=writer, stderr=subprocess.PIPE, cwd=Path(__file__).parent.parent, timeout=300
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
    assert (tmp_path / "out" / "metadata.json").exists()


def command_error(capsys, *arguments) -> str:
    """What main says on one line when it exits with status 2."""
    with pytest.raises(SystemExit) as exit_:
        module.main([*map(str, arguments)])
    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_a_seed_of_any_size(tmp_path):
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(140)))
    module.main([str(tmp_path / "train.txt"), "--out", str(tmp_path / "a"), "--split", "random", "--seed", "9" * 20])
    assert sum(len(written(tmp_path / "a", split)) for split in SPLITS) == 140


def test_write_dataset_keeps_further_columns(tmp_path):
    rows = plain(raw_fields(28))
    table = pa.table([pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)],
                     schema=SCHEMA).append_column("probability", pa.array([0.5] * 28))
    assert write_dataset([lambda: table], tmp_path / "out") == {"train": 24, "validation": 2, "test": 2}
    assert pq.read_table(tmp_path / "out" / "test").column_names == [LABEL, *DENSE, *SPARSE, "probability"]


def test_nothing_hangs_when_a_chunk_fails(tmp_path):
    def fail():
        raise UserError("the third chunk")

    table = SCHEMA.empty_table()
    chunks = [lambda: table, lambda: table, fail, *[lambda: table] * 50]
    with pytest.raises(UserError, match="the third chunk"):
        write_dataset(chunks, tmp_path / "out", workers=4)
    assert not os.listdir(tmp_path)


def test_it_needs_no_torch():
    """Its import takes as long as a few hundred thousand rows do."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, data.preprocess; print('torch' in sys.modules)"],
        capture_output=True, text=True, timeout=300, cwd=Path(__file__).parent.parent,
    )
    assert done.stdout == "False\n", done.stderr
