"""data.preprocess by processes: the files of its threads, byte for byte, whatever is killed; and one message."""

from __future__ import annotations

import errno
import gzip
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
from raw import raw_fields, tsv

pytest.importorskip("loguru")
pytest.importorskip("polars")
pytest.importorskip("distributed")
import distributed
import polars as pl
import psutil
import pyarrow as pa

from data import cluster, merge, pieces, raw
from data import preprocess as module
from data.cli import UserError
from data.preprocess import preprocess
from data.schema import read_schema
from data.vocabulary import write_metadata

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def address():
    """Of a scheduler whose workers are threads of this process, and see what a test replaces."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50
    ) as threads:
        yield threads.scheduler_address


@pytest.fixture
def small(monkeypatch):
    """Files of a few rows have many blocks and pieces, and features of a few ids many ranges."""
    monkeypatch.setattr(raw, "BLOCK", 5000)
    monkeypatch.setattr(raw, "READS", 2)
    monkeypatch.setattr(module, "LEAST", 1)


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def few(counts: int) -> int:
    """The memory in which a task holds so many counts."""
    return module.PROCESS + counts * module.BYTES_AN_ID


def outcome(blocks) -> list:
    seen = []
    try:
        seen.extend(block.text for block in blocks)
    except UserError as error:
        seen.append(getattr(error, "problem", str(error)))
    return seen


def test_pieces_have_the_blocks_of_the_whole_file(tmp_path, monkeypatch):
    draw, file = random.Random(0), tmp_path / "rows"
    monkeypatch.setattr(raw, "LONGEST", 3000)
    rows = [tsv([row]) for row in raw_fields(40)]
    lines = [*rows, b"x" * 2900, b"x" * 3100, b"x" * 9000, b"\n" * 4000, b" " * 50]
    lines += [end * n for end in (b"\n", b"\r\n", b" \n") for n in (1, 9)]
    pieced = errors = 0
    for _ in range(200):
        monkeypatch.setattr(raw, "BLOCK", draw.choice([300, 700, 2000, 5000]))
        monkeypatch.setattr(raw, "READS", draw.choice([1, 2, 4]))
        text = rows[0] + b"".join(draw.choices(lines, [20] * len(rows) + [1] * 11, k=draw.randint(0, 60)))
        if draw.random() < 0.3:
            text = text.rstrip(b"\r\n")
        if draw.random() < 0.3:
            text = ",".join(raw.RAW).encode() + b"\n" + text.replace(b"\t", b",")
        file.write_bytes(draw.choice([b"", b"\xef\xbb\xbf"]) + text)
        whole, parts = outcome(raw.blocks(file)), raw.pieces(file)
        assert outcome(block for piece in parts for block in raw.blocks_of(piece)) == whole, text
        pieced, errors = pieced + (len(parts) > 1), errors + isinstance(whole[-1], str)
    assert pieced > 100
    assert 10 < errors < 100


SETTINGS = {
    "order": {},
    "random": {"split": "random", "seed": 3},
    "days": {"split": "days", "order": "given"},
    "hashed": {"hash_size": 37, "min_count": 3},
    "ranges": {"memory": few(80)},
    "by files": {"schema": read_schema("terabyte")},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_bytes(tmp_path, small, address, name):
    rows = raw_fields(600)
    inputs = [tmp_path / f"day_{day}" for day in (1, 2, 22, 23)]
    for file, first in zip(inputs, (0, 200, 260, 400), strict=True):
        part = tsv(rows[first : first + 200])
        file.write_bytes(gzip.compress(part) if first == 200 else part)
    settings = dict(SETTINGS[name])
    theirs = preprocess(inputs, tmp_path / "processes", cluster=address, **settings)
    settings.pop("memory", None)
    assert theirs == preprocess(inputs, tmp_path / "threads", **settings)
    assert content(tmp_path / "processes") == content(tmp_path / "threads")


def test_lines_that_are_skipped(tmp_path, small, address, capsys):
    """Their numbers, in order, and a block that has no other lines."""
    rows = tsv(raw_fields(140))
    (tmp_path / "train.txt").write_bytes(rows + b"bad\n" * 4000 + rows)
    outs = []
    for name, where in (("threads", []), ("processes", ["--cluster", address, "--memory", "2GiB"])):
        module.main([str(tmp_path / "train.txt"), "--out", str(tmp_path / name), "--on-bad-line", "skip", *where])
        outs.append(capsys.readouterr())
    assert content(tmp_path / "processes") == content(tmp_path / "threads")
    assert outs[0].out.replace("threads", "processes") == outs[1].out
    assert "skipped 4,000 bad lines\ntrain: 240 rows" in outs[1].out
    stated, *skipped = outs[1].err.splitlines()
    assert stated.startswith(f"INFO: each task on {address} takes at most 2.00 GiB: it counts ")
    assert [line.partition("train.txt:")[2] for line in skipped] == [
        f"{number}: expected 40 tab-separated fields, found 1" for number in range(141, 151)
    ]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("fault", ["bad lines", "39 fields", "long", "cut off"])
def test_one_message_and_nothing_left(tmp_path, small, address, pack, fault):
    rows = tsv(raw_fields(140))
    text = rows + {
        "bad lines": b"bad\n" + rows + b"worse line\n", "39 fields": rows.split(b"\n")[0].partition(b"\t")[2] + b"\n",
        "long": b"x" * (raw.LONGEST + 9) + b"\n", "cut off": b"0\t1",
    }[fault] + rows
    (tmp_path / "train.txt").write_bytes(pack(text))
    messages = []
    for where in ({}, {"cluster": address}):
        with pytest.raises(UserError) as caught:
            preprocess([tmp_path / "train.txt"], tmp_path / "out", **where)
        messages.append(str(caught.value))
        assert os.listdir(tmp_path) == ["train.txt"]
    assert messages[1] == messages[0]
    assert f"{tmp_path}/train.txt:141: " in messages[0]


def test_a_gzip_file_that_ends_too_soon(tmp_path, small, address, monkeypatch):
    """Its name is as the user gave it, though workers may run elsewhere."""
    (tmp_path / "train.gz").write_bytes(gzip.compress(tsv(raw_fields(1400)))[:-900])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^train.gz: truncated or damaged gzip file"):
        preprocess([Path("train.gz")], tmp_path / "out", cluster=address)


def test_a_full_disk(tmp_path, address, monkeypatch):
    def full(table, path):
        raise OSError(errno.ENOSPC, "as a library says it")

    monkeypatch.setattr(pieces, "write_table", full)
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(20)))
    with pytest.raises(OSError, match="No space left on device; what was written there is removed") as caught:
        preprocess([tmp_path / "train.txt"], tmp_path / "out", cluster=address)
    assert caught.value.filename == str(tmp_path / "out")
    assert os.listdir(tmp_path) == ["train.txt"]


def test_machines_that_differ(tmp_path, address, monkeypatch):
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(20)))
    versions = itertools.count()
    monkeypatch.setattr(pieces, "version", lambda name: next(versions))
    with pytest.raises(UserError, match=rf"{address}: numpy: expected \d+ as here, found \d+ on another machine"):
        preprocess([tmp_path / "train.txt"], tmp_path / "out", cluster=address)
    assert os.listdir(tmp_path) == ["train.txt"]


@contextmanager
def limited(*where) -> Iterator[cluster.Workers]:
    """Workers that say what they have."""
    with cluster.cluster(*where) as workers:
        workers.limit = 1 << 30
        yield workers


@contextmanager
def listening(says: bytes) -> Iterator[str]:
    """The address of something that is no scheduler."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = []

        def answer():
            with suppress(OSError):  # closed
                while True:
                    connections.append(server.accept()[0])
                    connections[-1].sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_no_cluster(tmp_path, monkeypatch):
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(20)))
    for name in ("ANSWERS_S", "START_S", "SILENT_S"):
        monkeypatch.setattr(cluster, name, 0.3)
    with listening(b"") as silent, listening(b"HTTP/1.1 400 Bad Request\r\n") as other:
        for wrong, message in (
            ("tcp://127.0.0.1:9", "Timed out"), ("head", "missing port number"),
            ("tcp://no.invalid:9", ".*(known|resolution)"),
            (silent, "nothing in 0.3 s"), (other, "what listens there is something else"),
        ):
            with pytest.raises(UserError, match=f"^{wrong}: no scheduler of Dask answers: {message}"):
                preprocess([tmp_path / "train.txt"], tmp_path / "out", cluster=wrong)
    empty = {"n_workers": 0, "processes": False, "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    with distributed.LocalCluster(**empty) as none, pytest.raises(UserError, match=r"no worker in 0.3 s; start some"):
        preprocess([tmp_path / "train.txt"], tmp_path / "out", cluster=none.scheduler_address)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r"the package distributed is missing; requirements.txt has dask and"):
        preprocess([tmp_path / "train.txt"], tmp_path / "out", processes=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "0"], "argument --processes: expected at least 1, got 0"),
        (["--processes", "2", "--cluster", "tcp://head:8786"], "not allowed with argument"),
        (["--processes", "2", "--workers", "2"], "argument --workers: they are threads"),
        (["--memory", "4"], "argument --memory: expected a size as 900MiB or 4GiB, got '4'"),
        (["--processes", "4000"], "--processes 4000: expected at least 0.68 GiB, got 0.0"),
        (["--memory", "64MiB"], "--memory: expected at least 0.97 GiB, got 0.06"),
        (["--memory", "900TiB"], "GiB, what this machine has, got 921600.00"),
        (["--memory", "900TiB", "--processes", "2"], "--memory: expected at most"),
        (["--cluster", ""], "argument --cluster: expected an address, got none"),
        (["--split", "days"], "--split days: expected files for training and one to hold out, found one file"),
    ],
)
def test_wrong_arguments(tmp_path, capsys, arguments, message):
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(20)))
    with pytest.raises(SystemExit) as exit_:
        module.main([str(tmp_path / "train.txt"), "--out", str(tmp_path / "out"), *arguments])
    error = capsys.readouterr().err
    assert (exit_.value.code, error.count("\n")) == (2, 1)
    assert message in error


def test_more_memory_than_a_worker_has(tmp_path, address, monkeypatch):
    monkeypatch.setattr(module, "dask_cluster", limited)
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(20)))
    for memory, message in ((2, "at most 1.00 GiB, what each thread of a worker of .* has, got 2.00"), (1, None)):
        expected = pytest.raises(UserError, match=f"--memory: expected {message}") if message else nullcontext()
        with expected:
            preprocess([tmp_path / "train.txt"], tmp_path / "out", cluster=address, memory=memory << 30)


def test_days_without_rows(tmp_path, address):
    """Neither another file is held out nor nothing."""
    rows, header = tsv(raw_fields(20)), ",".join(raw.RAW).encode() + b"\n"
    (tmp_path / "day_0").write_bytes(rows)
    (tmp_path / "day_1").write_bytes(header)
    for names, message in (((0, 1), "day_1, which is held out, has no rows"), ((1, 0), "no file but .*day_0 has rows")):
        for where in ({}, {"cluster": address}):
            with pytest.raises(UserError, match=f"--split days: .*{message}"):
                preprocess(
                    [tmp_path / f"day_{n}" for n in names], tmp_path / "out", split="days", order="given", **where
                )


def test_a_pipe_is_read_by_one_process(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="a pipe is read once, by one process: name files"):
        preprocess([tmp_path / "pipe"], tmp_path / "out", processes=2)


@pytest.mark.parametrize(("most", "min_count"), [(100, 2), (2000, 2), (300, 5000)])
def test_counting_by_ranges_has_the_same_bytes(tmp_path, small, most, min_count):
    """Also of a feature whose ids are all too rare."""
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(700, ids=400)))
    rows, _ = preprocess([tmp_path / "train.txt"], tmp_path / "out", min_count=min_count)
    whole = content(tmp_path / "out")
    for name in [name for name in whole if name.startswith("ids/")]:
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "ids").rmdir()
    write_metadata(tmp_path / "out", rows, min_count=min_count, most=most)
    assert content(tmp_path / "out") == whole


def test_ranges_are_put_in_order_window_by_window(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    for _ in range(60):
        monkeypatch.setattr(merge, "WINDOW", int(draw.choice([3, 10, 100, 1000])))
        ids = np.sort(draw.choice(1 << 20, draw.integers(1, 2000), replace=False)).astype(np.uint32)
        counts = pl.DataFrame({"id": ids, "count": np.minimum(draw.zipf(1.5, len(ids)), 1 << 40)})
        cuts = [0, *np.sort(draw.integers(0, len(ids) + 1, draw.integers(0, 5))), len(ids)]
        parts = []
        for i, (start, end) in enumerate(itertools.pairwise(cuts)):
            part = counts[start:end].sort("count", descending=True, maintain_order=True)
            merge.Counts.write(part, tmp_path / f"{i}.ids")
            parts.append(merge.Counts(tmp_path / f"{i}.ids"))
        tables = list(merge.merged(parts))
        assert {len(table) for table in tables[:-1]} <= {merge.WINDOW}
        assert pl.from_arrow(pa.concat_tables(tables)).equals(
            counts.sort("count", descending=True, maintain_order=True)
        )


def start(source: Path, out: Path, *more: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "data.preprocess", source, "--out", out, "--processes", "2", *more], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )


def test_two_processes(tmp_path):
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(140)))
    preprocess([tmp_path / "train.txt"], tmp_path / "threads")
    process = start(tmp_path / "train.txt", tmp_path / "out", "--memory", "900MiB")
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert error == "INFO: each task on 2 processes takes at most 0.88 GiB: it counts 3,243,018 ids at a time\n"
    assert "train: 120 rows" in out
    assert content(tmp_path / "out") == content(tmp_path / "threads")


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def wait_for_parts(process: subprocess.Popen, out: Path, number: int) -> None:
    deadline = time.monotonic() + 300
    while len(list(out.glob(".partial/parts-*/*.parquet"))) < number and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """400,000 rows, in six blocks."""
    file = tmp_path_factory.mktemp("many") / "train.txt"
    file.write_bytes(tsv(raw_fields(20_000, ids=5000)) * 20)
    return file


@pytest.mark.slow
def test_a_killed_worker_costs_its_task(tmp_path, many):
    preprocess([many], tmp_path / "threads")
    process = start(many, tmp_path / "out")
    wait_for_parts(process, tmp_path / "out", 2)
    worker = workers_of(process)[-1]
    environment = worker.environ()
    worker.kill()
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert content(tmp_path / "out") == content(tmp_path / "threads")
    assert environment["POLARS_MAX_THREADS"] == "1"
    assert "MALLOC_TRIM_THRESHOLD_" not in environment  # Dask's costs a quarter of the CPU time of the work


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(tmp_path, many, number):
    """Ctrl-C goes to all processes of a terminal."""
    process = start(many, tmp_path / "out")
    wait_for_parts(process, tmp_path / "out", 2)
    workers = workers_of(process)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 128 + number, error
    last = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert [line for line in error.splitlines() if not line.startswith("INFO")] == [f"data.preprocess: {last}"]
    assert os.listdir(tmp_path) == []
    assert not [worker for worker in workers if worker.is_running()]
