"""Raw files to Parquet: the same rows as a plain reading gives, and a clear error for every malformed line."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw import raw_fields, tsv

pytest.importorskip("loguru")
from data import dataset
from data import preprocess as module
from data.cli import UserError
from data.criteo import COLUMNS, DENSE, LABEL, SCHEMA, SPARSE, read_metadata
from data.dataset import SPLITS, write_dataset
from data.preprocess import RAW, preprocess


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


def error(tmp_path: Path, content: bytes, name: str = "train.txt") -> str:
    with pytest.raises(UserError) as caught:
        run(tmp_path, content, name)
    assert not [path for path in tmp_path.iterdir() if "out" in path.name], "something half-written was left"
    return str(caught.value).replace(f"{tmp_path}/", "")


def command(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "data.preprocess", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent.parent, **options,
    )  # fmt: skip


def test_rows_order_splits_and_metadata(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 5000)  # many blocks and parts
    rows = raw_fields(1400)
    out = run(tmp_path, tsv(rows))
    assert everything(out) == plain(rows)
    assert [len(written(out, split)) for split in SPLITS] == [1200, 100, 100]
    assert pq.read_schema(next((out / "train").iterdir())).equals(SCHEMA)
    metadata = json.loads((out / "metadata.json").read_text())
    for i, name in enumerate(SPARSE):
        counts = Counter(int(row[14 + i], 16) for row in rows[:1200] if row[14 + i])
        expected = sorted(counts, key=lambda v: (-counts[v], v))
        assert metadata[name] == {"cardinality": len(expected), "tokenizer_values": expected}


def test_min_count(tmp_path):
    rows = raw_fields(700)
    out = run(tmp_path, tsv(rows), min_count=12)
    for i, feature in enumerate(read_metadata(out).values()):
        counts = Counter(int(row[14 + i], 16) for row in rows[:600] if row[14 + i])
        assert set(feature.tokenizer_values) == {v for v, n in counts.items() if n >= 12}


def test_counting_merges_many_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "_COUNT_CHUNK", 64)
    monkeypatch.setattr(module, "BLOCK", 5000)
    rows = raw_fields(1400, ids=300)
    features = read_metadata(run(tmp_path, tsv(rows)))
    for i, name in enumerate(SPARSE):
        counts = Counter(int(row[14 + i], 16) for row in rows[:1200] if row[14 + i])
        assert features[name].tokenizer_values.tolist() == sorted(counts, key=lambda v: (-counts[v], v))


def test_random_split_is_repeatable_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 20000)
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
    "count that is not a number": (1, "nan", "field I1: expected a whole number, found 'nan'"),
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
    monkeypatch.setattr(module, "BLOCK", 2000)  # the line is in a later block
    column, value, message = BAD[case]
    rows = raw_fields(60)
    rows[40][column] = value
    assert error(tmp_path, tsv(rows)) == f"train.txt:41: {message}"


def test_bad_lines_of_other_lengths(tmp_path):
    rows = [tsv([row]) for row in raw_fields(9)]
    assert error(tmp_path, b"".join([*rows[:4], b"\n", *rows[4:]])) == "train.txt:5: the line is empty"
    assert error(tmp_path, b"".join([*rows, b"\n"])) == "train.txt:10: the line is empty"
    assert error(tmp_path, b"".join([*rows, b"0\t1\t2"])) == "train.txt:10: expected 40 tab-separated fields, found 3"
    unlabelled = tsv([row[1:] for row in raw_fields(9)])
    assert "train.txt:1: expected 40 tab-separated fields, found 39; this looks like Kaggle's unlabelled" in error(
        tmp_path, unlabelled
    )
    assert "train.txt:3: not UTF-8" in error(tmp_path, b"".join([*rows[:2], rows[2][:-1] + b"\xff\n", *rows[3:]]))


def test_bad_files(tmp_path):
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
    assert "unknown column 'c27'" in error(tmp_path, header.encode() + b",C27\n")
    assert "column 'c26' stands there twice" in error(tmp_path, header.encode() + b",C26\n")
    assert "or a CSV header label,I1" in error(tmp_path, tsv(raw_fields(3)).replace(b"\t", b","))
    assert error(tmp_path, header.encode() + b"\n") == "no rows in the input"
    with pytest.raises(UserError, match="nowhere: no such file"):
        preprocess([tmp_path / "nowhere"], tmp_path / "out")


def test_bad_lines_skipped_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 3000)
    rows = raw_fields(60)
    bad = {7: tsv([rows[7][1:]]), 8: b"\n", 33: tsv([[*rows[33][:-1], "xyz"]])}
    (tmp_path / "train.txt").write_bytes(b"".join(bad.get(n, tsv([row])) for n, row in enumerate(rows)))
    _, skipped = preprocess([tmp_path / "train.txt"], tmp_path / "out", on_bad_line="skip")
    assert skipped == 3
    assert everything(tmp_path / "out") == plain([row for n, row in enumerate(rows) if n not in bad])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 39), st.text(alphabet="0123456789abcdefxX.-+ eE_nif\"'\r", max_size=10))
def test_fast_and_line_by_line_parsers_agree(column, value):
    """A value is accepted by Arrow's path exactly if the line-by-line reading finds nothing wrong with it."""
    layout = module.Layout("\t", COLUMNS, header=False)
    row = raw_fields(1)[0]
    row[column] = value
    wrong = module._wrong("\t".join(row).encode().removesuffix(b"\r"), layout)
    try:
        table = module._parse(tsv([row]), layout)
    except module._Rejected:
        # Rejected by the fast path and good line by line: read once more by itself, it must then be the error's text.
        assert wrong or "x" in value.lower() or "\r" in value or value != value.strip()
    else:
        assert wrong is None
        got = table.column(column)[0].as_py()
        expected = int(value, 16) if column >= 14 and value else -1 if column >= 14 else None
        if column < 14 and value.strip():
            expected = int(float(value)) if "." in value else int(value)
        assert got == expected


@pytest.mark.parametrize("exists", ["file", "full directory"])
def test_output_exists(tmp_path, exists):
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(20)))
    out = tmp_path / "out"
    if exists == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine").write_text("mine")
    with pytest.raises(UserError, match="already exists; remove it or name another"):
        preprocess([tmp_path / "train.txt"], out)
    assert (out if exists == "file" else out / "mine").read_text() == "mine"


def test_output_into_an_empty_directory(tmp_path):
    (tmp_path / "out").mkdir()
    assert everything(run(tmp_path, tsv(raw_fields(20)))) == plain(raw_fields(20))


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
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "train.txt", "--out", tmp_path / "out"],
        capture_output=True, text=True, cwd=Path(__file__).parent.parent, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.txt"]


@pytest.mark.slow
def test_interrupted_run_leaves_nothing(tmp_path):
    source, out = tmp_path / "pipe", tmp_path / "out"
    big = tsv(raw_fields(2000)) * 400
    source.write_bytes(big)
    process = subprocess.Popen(
        [sys.executable, "-m", "data.preprocess", source, "--out", out],
        stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.partial-*/parts/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "data.preprocess: interrupted" in stderr
    assert "Traceback" not in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_command_line(tmp_path):
    rows = raw_fields(60)
    rows[20][3] = "1.5"
    (tmp_path / "train.txt").write_bytes(tsv(rows))
    bad = command(tmp_path / "train.txt", "--out", tmp_path / "out")
    assert bad.returncode == 2
    assert f"data.preprocess: {tmp_path}/train.txt:21: field I3: expected a whole number, found '1.5'" in bad.stderr
    assert "Traceback" not in bad.stderr
    good = command(tmp_path / "train.txt", "--out", tmp_path / "out", "--on-bad-line", "skip")
    assert good.returncode == 0, good.stderr
    assert "skipped 1 bad lines" in good.stdout
    assert "rows/s" in good.stderr
    assert "WARNING: skipped" in good.stderr
    for wrong in (["--min-count", "0"], ["--split", "sideways"], ["--workers", "0"]):
        assert command(tmp_path / "train.txt", "--out", tmp_path / "new", *wrong).returncode == 2


def test_write_dataset_keeps_further_columns(tmp_path):
    rows = plain(raw_fields(28))
    table = pa.table([pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), SCHEMA, strict=True)],
                     schema=SCHEMA).append_column("probability", pa.array([0.5] * 28))  # fmt: skip
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
