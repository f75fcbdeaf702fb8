"""What a cell measures: by a clock that is told what to say on a "GPU", kept, shown elsewhere, and quoted in prose."""

from __future__ import annotations

import json

import pytest
import torch
from fake_clock import Clock

from kernels import runtime
from kernels.measure import records
from lessons.shared import measure as module
from lessons.shared.claim import unprinted
from lessons.shared.measure import Times, measure, waited

VERSIONS = {name: "1" for name in module.VERSIONS} | {"GPU": "NVIDIA X1"}
RIGHT = {"eager": lambda x: 2 * x, "yours": lambda x: x + x}


def ask(sizes=(8, 64), ways=RIGHT, **options):
    return measure("99", "double", sizes, lambda n: (torch.ones(n),), ways, moved=lambda x: 2 * x.nbytes, **options)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU whose replays take what one says, and a folder of records; off() takes the GPU away."""
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    cell = module._Cell(cpu)
    cell.gpu = Clock(times=(32.0, 36.0, 40.0))
    cell.gpu.l2_bytes = 0  # so that four sets of inputs are enough
    monkeypatch.setattr(runtime, "device", lambda: cuda)
    monkeypatch.setattr(runtime, "versions", lambda: VERSIONS)
    monkeypatch.setattr(module, "_cell", lambda: cell)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(records.recorded_files, "__defaults__", (tmp_path, None))
    cell.off = lambda: monkeypatch.setattr(runtime, "device", lambda: cpu)
    cell.keeps = lambda: monkeypatch.setenv(module.FOLDER, str(tmp_path))
    cell.keeps_no_more = lambda: monkeypatch.delenv(module.FOLDER)
    return cell


def test_what_a_gpu_measured_is_kept_and_shown_elsewhere(gpu, capsys, tmp_path):
    gpu.keeps()
    measured = ask()
    printed = capsys.readouterr().out
    assert printed.startswith("MEASURED here: NVIDIA X1, ")
    # 9 µs a call: a graph has calls on four sets of inputs. 64 floats in and out, 512 bytes.
    line = "  yours  9.0 µs (8.4 to 9.6)  0.00 TB/s  0 % of a copy's\n"
    assert printed.count(line) == 2
    assert printed.endswith("\na copy of 1 GiB: 4.29 TB/s\n")
    kept = json.loads((tmp_path / "x1" / "lecture_99.json").read_text())
    command = {"command": "python notebooks/lecture.py 99 --record --store"}
    assert kept == {"op": "lecture_99"} | command | VERSIONS | {"date": kept["date"], "rows": kept["rows"]}
    assert len(kept["rows"]) == 5
    gpu.off()
    shown = ask()
    assert shown.rows == measured.rows == kept["rows"]
    assert capsys.readouterr().out == printed.replace("MEASURED here", "RECORDED on")


def test_a_measurement_anew_replaces_its_rows_only(gpu, tmp_path):
    gpu.keeps()
    ask(sizes=[8])
    measure("99", "other", [1], lambda n: (torch.ones(n),), {"fails": lambda x: 1 / 0}, right=RIGHT["eager"])
    ask(sizes=[64])
    rows = json.loads((tmp_path / "x1" / "lecture_99.json").read_text())["rows"]
    assert [(row["part"], row["size"]) for row in rows] == [
        ("other", 1), ("double", 64), ("double", 64), ("double", None),
    ]
    assert rows[0]["match"] == "FAILED: ZeroDivisionError: division by zero"


def test_a_reader_sees_theirs_beside_the_record(gpu, capsys):
    gpu.keeps()
    ask(sizes=[8])
    gpu.keeps_no_more()
    gpu.gpu.told = [4.0]
    capsys.readouterr()
    ask(sizes=[8, 16], ways=RIGHT | {"mine": lambda x: x * 2, "wrong": lambda x: x + 2})
    lines = capsys.readouterr().out.splitlines()
    assert "  yours  1.0 µs (1.0 to 1.0)  recorded 9.0 µs  0.00 TB/s  0 % of a copy's" in lines
    assert lines.count("  mine   1.0 µs (1.0 to 1.0)  not recorded  0.00 TB/s  0 % of a copy's") == 2
    assert lines.count("  wrong  FAILED: the result is wrong  not recorded") == 2
    gpu.off()
    ask(sizes=[8, 16], ways=RIGHT | {"mine": lambda x: x * 2})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:4] == ["not recorded: 16; recorded: 8", "not recorded: mine; recorded: eager, yours", "8 rows"]
    assert len(lines) == 7


def test_nothing_is_recorded_yet(gpu, capsys):
    gpu.off()
    compiled = torch.compile(RIGHT["yours"])
    ask(ways=RIGHT | {"compiled": compiled}, small=3).compare("yours", "eager", 8)
    assert capsys.readouterr().out.splitlines() == [
        "double: not recorded yet. On a GPU this cell measures it.", "8 rows: yours and eager: not timed yet",
    ]
    with pytest.raises(AssertionError, match="wrong: the result is wrong"):
        ask(ways=RIGHT | {"wrong": lambda x: x + 2}, small=3)


def test_ways_that_change_their_tensors(gpu, capsys):
    table = torch.ones(5, 2)

    def add(table, rows):
        table.index_add_(0, rows, table.new_ones(len(rows), 2))

    def twice(table, rows):
        add(table, rows), add(table, rows)

    def waits(table, rows):
        table[rows] += rows.float().add(1).sign().tolist()[0]

    asked = ("99", "rows", [2], lambda n: (table, torch.arange(n)), {"add": add, "twice": twice, "waits": waits})
    changes = {"changes": lambda table, rows: [(table, rows)]}
    for calls, what in ((0, "on the GPU"), (1, "from call to result")):
        measure(*asked, **changes, calls=calls)
        first, _, *lines = capsys.readouterr().out.splitlines()
        assert what in first
        assert ["FAILED: the result is wrong" in line for line in lines] == [False, True, False]
    assert (table[2:] == 1).all()
    gpu.off()
    with pytest.raises(AssertionError, match="twice: the result is wrong"):
        measure(*asked, **changes, small=2)


def test_calls_from_python_are_timed_on_one_set_of_inputs(gpu, capsys):
    made, asked = [], []

    def inputs(n):
        made.append(n)
        return (torch.ones(n),)

    def call_times(functions, calls, count):
        asked.append((calls, count, [function().tolist() for function in functions.values()]))
        return {number: [9.0] * count for number in functions}

    gpu.call_times = call_times
    gpu.keeps()
    measure("99", "calls", [2], inputs, RIGHT, calls=50)
    assert made == [2]
    assert asked == [(50, module.BATCHES, [[2.0, 2.0], [2.0, 2.0]])]
    printed = capsys.readouterr().out
    assert "µs a call from Python: median" in printed
    assert printed.count(" 9.0 µs (9.0 to 9.0)") == 2
    gpu.off()
    measure("99", "calls", [2], inputs, RIGHT, calls=50)
    assert capsys.readouterr().out == printed.replace("MEASURED here", "RECORDED on")


class Program:
    """A way that times its calls itself."""

    def __init__(self, factor):
        self.factor, self.calls = factor, 0

    def __call__(self, x):
        self.calls += 1
        return self.factor * x

    def us(self):
        return 1.0, 2.0, 3.0


def test_what_a_caller_waits_for(gpu, capsys):
    program, kept = Program(2), []

    def stale(x):  # what a graph that does not read its inputs gives
        kept.append(2 * x)
        return kept[0]

    def ask(ways):
        new = torch.Generator().manual_seed(0)
        return waited(
            "99", "calls", [8], lambda n: (torch.rand(n, generator=new),), ways, RIGHT["eager"], off=1e-6, calls=20
        )

    gpu.keeps()
    times = ask(RIGHT | {"program": program, "wrong": Program(3), "stale": stale, "fails": lambda x: x.none})
    assert [row["match"][:6] for row in times.rows] == ["ok", "ok", "ok", "FAILED", "FAILED", "FAILED"]
    assert "us_p50" not in times.rows[4]
    assert times.one("yours", 8)["us_p20"] <= times.one("yours", 8)["us_p50"] <= times.one("yours", 8)["us_p80"]
    assert program.calls == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("µs that the caller waits: median (20th to 80th percentile)")
    assert "  program  2.0 µs (1.0 to 3.0)" in lines
    assert "  fails    FAILED: AttributeError: 'Tensor' object has no attribute 'none'" in lines
    gpu.off()
    ask({"program": program})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "8 rows", "  program  2.0 µs (1.0 to 3.0)",
    ]
    assert program.calls == 1


def test_what_is_faster(capsys):
    spreads = {"a": (1.0, 1.1, 1.2), "b": (1.3, 1.4, 1.5), "c": (1.15, 1.2, 1.3), "d": (1.401, 1.41, 1.42)}
    names = ("us_p20", "us_p50", "us_p80")
    rows = [{"name": name, "size": 5} | dict(zip(names, us, strict=True)) for name, us in spreads.items()]
    for name, other in (("b", "a"), ("a", "c"), ("b", "d")):
        Times(rows, "", "rows").compare(name, other, 5)
    assert capsys.readouterr().out.splitlines() == [
        "5 rows: a is faster than b, 1.27 ×, beyond the spread of both",
        "5 rows: neither a nor c is faster: 1.09 ×, within their spread or 3 %",
        "5 rows: neither b nor d is faster: 1.01 ×, within their spread or 3 %",
    ]


@pytest.mark.parametrize(
    ("prose", "left"),
    [
        ("# 15 · Title\n\nIt takes 48.4 µs, or 48 µs; 1,116 µs; **76 %**.", []),
        ("It takes 48.5 µs, 49 µs, 48 ms, 48 % and 1,117 µs.", ["48.5 µs", "49 µs", "48 ms", "48 %", "1,117 µs"]),
        ("| 65536 | 48.4 | 12.3 |", ["12.3"]),
        ("26 tables, 65,536 rows, 9 ids, 27 are no code; `x = 55`, [77](77.md), notebooks 06 and 17.", ["27"]),
        ("2³² + 2 and -1; C26; float32; 1.5 million, 0.5.", ["1.5", "0.5"]),
    ],
)
def test_prose_quotes_what_is_printed(prose, left):
    code, outputs = "tables, rows = 26, 65_536", "yours 48.43 µs (48 to 50) 76 % 1,116.2 µs"
    assert unprinted(prose, code, outputs) == left
