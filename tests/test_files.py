"""Several files: in the order of their numbers, or it is said that they are not; and each of them once."""

from __future__ import annotations

import gzip
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from raw import raw_fields, tsv

pytest.importorskip("loguru")
pytest.importorskip("polars")
from loguru import logger
from test_preprocess import everything, plain, written

from data.cli import UserError
from data.criteo import COLUMNS, CriteoBatches
from data.files import by_numbers, out_of_order
from data.preprocess import main, preprocess
from data.schema import SCHEMA, SPLITS, read_schema

ROOT = Path(__file__).resolve().parent.parent


def days(folder: Path, names: list[str], rows: int = 7) -> list[list[str]]:
    """A file of each name; the rows of all of them, each with its file's position in I1."""
    fields = raw_fields(rows * len(names))
    for day, name in enumerate(names):
        part = fields[day * rows : (day + 1) * rows]
        for row in part:
            row[1] = str(day)
        (folder / name).write_bytes(tsv(part))
    return fields


def test_the_readmes_line_for_many_days(tmp_path):
    """As a shell runs it."""
    [line] = [line for line in (ROOT / "data" / "README.md").read_text().splitlines() if "zcat" in line]
    rows = days(tmp_path, [f"day_{day}.gz" for day in range(24)])
    for day in tmp_path.iterdir():
        day.write_bytes(gzip.compress(day.read_bytes()))
    command = line.removeprefix("$ ").replace("python ", f"{shlex.quote(sys.executable)} ").replace("DIR", "out")
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert everything(tmp_path / "out") == plain(rows)
    assert [{row[1] for row in written(tmp_path / "out", split)} for split in SPLITS] == [
        set(range(21)), {20, 21, 22}, {22, 23}
    ]


WRONG = [
    ["day_0", "day_1", "day_10", "day_2"], ["day_1.gz", "day_0.gz"], ["day_10", "day_2.gz"], ["x9", "x10", "x1"],
    ["part-10-3fa9.csv", "part-2-12bc.csv"], ["2026-01-02_10.txt", "2026-01-02_9.txt"], ["a_2_b_1", "a_1_b_9"],
    ["1of10", "10of10", "2of10"], ["run_10/rows", "run_9/rows"], ["9/5", "9/4"], ["00010.tsv", "0002.tsv"],
]
RIGHT = [
    ["day_0", "day_1", "day_2", "day_10"], ["day_0.gz", "day_00.gz"], ["day_00.gz", "day_0.gz"], ["b", "a"],
    ["part-00000-3fa9", "part-00001-12bc"], ["3fa9.csv", "12bc.csv"], ["train_2", "test_1"], ["a/1", "b/0"],
    ["2026-01-31", "2026-02-01"], ["x", "x1"], ["a_1_b_9", "a_2_b_1"], ["day_9"],
]


def files(folder: Path, names: list[str]) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return [folder / name for name in names]


@pytest.mark.parametrize("names", WRONG, ids=" ".join)
def test_another_order_than_that_of_the_numbers_is_named(tmp_path, names):
    paths = files(tmp_path, names)
    message = out_of_order(paths)
    right = by_numbers(paths)
    assert " stands before " in message
    assert message.endswith(f"; the order of their numbers is {' '.join(map(str, right))}")
    assert out_of_order(right) is None


@pytest.mark.parametrize("names", RIGHT, ids=" ".join)
def test_an_order_that_no_number_forbids(tmp_path, names):
    assert out_of_order(files(tmp_path, names)) is None


def test_pipes_have_no_order(tmp_path):
    """A shell gives <(zcat a) <(zcat b) as /dev/fd/63 /dev/fd/62."""
    for name in ("63", "62"):
        os.mkfifo(tmp_path / name)
    assert out_of_order([tmp_path / "63", tmp_path / "62"]) is None


def failed(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as exit_:
        main([*map(str, arguments)])
    assert exit_.value.code == 2
    return capsys.readouterr().err


def test_a_split_by_order_wants_the_files_in_order(tmp_path, capsys):
    rows = days(tmp_path, [f"day_{day}" for day in range(12)])
    shell = sorted(tmp_path.glob("day_*"))
    right = [tmp_path / f"day_{day}" for day in range(12)]
    message = failed(capsys, *shell, "--out", tmp_path / "out")
    assert message == (
        f"data.preprocess: {tmp_path}/day_11 stands before {tmp_path}/day_2; the order of their numbers is "
        f"{' '.join(map(str, right))}; a split by order holds out the last rows: name the files in that order, or say "
        "--order numbers (sort them so) or --order given (as they are)\n"
    )
    assert not (tmp_path / "out").exists()
    main([*map(str, shell), "--out", str(tmp_path / "sorted"), "--order", "numbers"])
    assert everything(tmp_path / "sorted") == plain(rows)
    main([*map(str, shell), "--out", str(tmp_path / "given"), "--order", "given"])
    expected = [row for file in shell for row in rows if row[1] == file.name.removeprefix("day_")]
    assert everything(tmp_path / "given") == plain(expected)
    main([*map(str, shell), "--out", str(tmp_path / "random"), "--split", "random"])  # in which it changes nothing
    assert capsys.readouterr().err == ""


def test_from_python_it_is_a_warning(tmp_path):
    rows = days(tmp_path, ["day_9", "day_10"])
    messages: list[str] = []
    handler = logger.add(messages.append, format="{level}: {message}")
    try:
        preprocess([tmp_path / "day_10", tmp_path / "day_9"], tmp_path / "out")
        preprocess([tmp_path / "day_10", tmp_path / "day_9"], tmp_path / "silent", order="given")
        preprocess([tmp_path / "day_10", tmp_path / "day_9"], tmp_path / "sorted", order="numbers")
    finally:
        logger.remove(handler)
    [line] = messages
    assert line.startswith(f"WARNING: {tmp_path}/day_10 stands before {tmp_path}/day_9; the order of their numbers is ")
    assert everything(tmp_path / "out") == everything(tmp_path / "silent") == plain(rows[7:] + rows[:7])
    assert everything(tmp_path / "sorted") == plain(rows)
    with pytest.raises(ValueError, match="order: expected"):
        preprocess([tmp_path / "day_9"], tmp_path / "no", order="sideways")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe: expected a file, for --order numbers goes by names"):
        preprocess([tmp_path / "day_9", tmp_path / "pipe"], tmp_path / "no", order="numbers")


@pytest.mark.parametrize("again", ["./k.tsv", "link", "hard", "../{}/k.tsv", "k.tsv"])
def test_the_same_file_twice(tmp_path, monkeypatch, capsys, again):
    days(tmp_path, ["k.tsv", "other"])
    (tmp_path / "link").symlink_to("k.tsv")
    (tmp_path / "hard").hardlink_to(tmp_path / "k.tsv")
    monkeypatch.chdir(tmp_path)
    again = again.format(tmp_path.name)
    for options in ([], ["--split", "random"], ["--order", "given"]):
        message = failed(capsys, "k.tsv", "other", again, "--out", "out", *options)
        assert message == (
            f"data.preprocess: {Path(again)}: the same file as k.tsv, and its rows would come twice; name it once\n"
        )
    file = Path("k.tsv")
    with pytest.raises(UserError, match=r"k\.tsv: the same file as k\.tsv"):
        preprocess([file, file], Path("out"))
    assert not Path("out").exists()


def test_stdin_may_be_one_of_the_files(tmp_path):
    """`data.preprocess k.tsv - < k.tsv`."""
    days(tmp_path, ["k.tsv"])
    with (tmp_path / "k.tsv").open() as stdin:
        before = os.dup(0)
        os.dup2(stdin.fileno(), 0)
        try:
            with pytest.raises(UserError, match=r"/dev/stdin: the same file as .*k\.tsv, and its rows"):
                preprocess([tmp_path / "k.tsv", Path("-")], tmp_path / "out")
        finally:
            os.dup2(before, 0)
            os.close(before)


def part(path: Path, value: int) -> None:
    """A Parquet file of two rows whose ids are this."""
    columns = [pa.array([0, 1], pa.int8())] + [pa.array([value] * 2, pa.int64())] * (len(COLUMNS) - 1)
    pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), path)


@pytest.mark.parametrize(
    "names",
    [
        [f"part-{i}.parquet" for i in range(12)], [f"part-{i}-{10 - i:x}f9.snappy.parquet" for i in range(11)],
        ["2_9.parquet", "2_10.parquet", "10_1.parquet"], ["part-99999.parquet", "part-100000.parquet"],
        ["day_0.parquet", "day_00.parquet", "day_1.parquet"], ["9.parquet", "a.parquet", "b.parquet"],
    ],
    ids=" ".join,
)
def test_a_folder_is_read_in_the_order_of_its_numbers(tmp_path, names):
    for i, name in enumerate(names):
        part(tmp_path / name, i)
    ids = [int(one) for _, _, sparse in CriteoBatches(tmp_path, 2) for one in sparse[:, 0]]
    assert ids == [i for i in range(len(names)) for _ in range(2)]


def test_parquet_has_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"rows\.parquet: Parquet through a pipe; name the file$"):
        CriteoBatches(tmp_path / "rows.parquet", 2)


def test_a_folder_that_holds_a_file_twice(tmp_path):
    part(tmp_path / "a.parquet", 1)
    for make in (lambda path: path.symlink_to("a.parquet"), lambda path: path.hardlink_to(tmp_path / "a.parquet")):
        make(tmp_path / "latest.parquet")
        with pytest.raises(UserError, match=r"/latest\.parquet: the same file as .*/a\.parquet, and its rows would"):
            CriteoBatches(tmp_path, 2)
        (tmp_path / "latest.parquet").unlink()
    (tmp_path / "gone.parquet").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"gone\.parquet: cannot be read as Parquet"):
        CriteoBatches(tmp_path, 2)


@pytest.mark.parametrize("name", ["._part-0.parquet", ".part-0.parquet", "_metadata.parquet", "_part-0.parquet"])
def test_names_that_other_programs_hide_are_left_out(tmp_path, name):
    part(tmp_path / "part-0.parquet", 1)
    (tmp_path / name).write_bytes(b"\0\5\26\7")
    assert CriteoBatches(tmp_path, 2).num_rows == 2
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        CriteoBatches(tmp_path / name, 2)  # it was named
    (tmp_path / "part-0.parquet").unlink()
    with pytest.raises(UserError, match=r"no \*\.parquet file in it$"):
        CriteoBatches(tmp_path, 2)


def test_a_schema_whose_split_is_by_names_takes_any_order(tmp_path, capsys):
    days(tmp_path, ["day_0", "day_10", "day_2", "day_22", "day_23"])
    shell = sorted(tmp_path.glob("day_*"))
    assert preprocess(shell, tmp_path / "out", schema=read_schema("terabyte"))[0] == {
        "train": 21, "validation": 7, "test": 7
    }
    assert "stands before" not in capsys.readouterr().err
