"""What a run that is stopped leaves, and what the next one takes from it."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from fake_clock import Clock, cell

from kernels import runtime
from kernels.measure import bench, partial_record, records
from kernels.measure.partial_record import PartialRecord


@pytest.fixture
def on_an_h200(monkeypatch, tmp_path):
    """The folder of its records."""
    versions = runtime.versions() | {"GPU": "NVIDIA H200", "driver": "580.1"}
    monkeypatch.setattr(runtime, "versions", lambda: versions)
    monkeypatch.setattr(partial_record, "_machine", lambda: "GPU-1")
    return tmp_path / "results"


@pytest.fixture
def command(on_an_h200, monkeypatch):
    """`bench add_relu --save …` of three parts, of which `stopped` are reached by a Ctrl-C; what the parts' kernels
    were called for."""
    called, stopped = [], set()

    def eager(part):
        def kernel(x, bias):
            called.append(part)
            if part in stopped:
                raise KeyboardInterrupt
            return torch.relu(x + bias)

        return kernel

    cells = [cell(part=part, cuda=eager(part)) for part in ("grid", "bandwidth", "bandwidth", "waits")]
    cells[2] = replace(cells[2], labels=cells[2].labels | {"rows": 5})
    monkeypatch.setattr(bench.of("add_relu"), "cells", lambda quick: cells)
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(bench, "Gpu", Clock)
    monkeypatch.setattr(bench, "COPY_PAUSE", 0)
    monkeypatch.setattr(bench, "save", partial(records.save, results=on_an_h200))
    monkeypatch.setattr(bench, "PartialRecord", partial(PartialRecord, results=on_an_h200))

    def run(*options):
        called.clear()
        code = bench.main(["add_relu", "--save", *options])
        return code, dict.fromkeys(called)

    run.stopped = stopped
    return run


def test_a_run_that_is_stopped_loses_the_part_that_it_was_at(command, on_an_h200, capsys):
    folder = on_an_h200 / "h200"
    command.stopped.add("waits")
    with pytest.raises(KeyboardInterrupt):
        command()
    assert [path.name for path in folder.iterdir()] == ["add_relu.partial.json"]
    left = records.read(folder / "add_relu.partial.json")["parts"]
    assert [*left] == ["grid 0", "bandwidth 1"]
    of_cells = [row for row in left["bandwidth 1"]["rows"] if row["part"] != "copy"]
    assert [row["implementation"] for row in of_cells] == ["eager", "cuda"] * 2
    command.stopped.clear()
    assert command("--resume") == (0, {"waits": None})
    assert re.search(r"\n# add_relu: bandwidth 1: from \S+/h200/add_relu.partial.json\n", capsys.readouterr().out)
    assert [path.name for path in folder.iterdir()] == ["add_relu.json"]
    whole = bench.load("add_relu", results=on_an_h200)
    parts = [row["part"] for row in whole["rows"] if row["part"] != "copy"]
    assert parts == ["grid"] * 2 + ["bandwidth"] * 4 + ["waits"] * 2
    assert len(whole["copy_tb_per_s"]["all"]) == 2 * 3
    assert all(row["percent_of_copy"] for row in whole["rows"] if row["part"] != "copy")
    assert command("--resume")[1].keys() == {"grid", "bandwidth", "waits"}  # there is nothing to take
    assert "# add_relu: no run was stopped: all is measured\n" in capsys.readouterr().out


@pytest.mark.parametrize("another", ["machine", "torch", "without", "code_sha256"])
def test_nothing_is_taken_from_another(another, on_an_h200, monkeypatch, tmp_path, capsys):
    (tmp_path / "kernel.cu").write_text("a")

    def run(resume=True, without=()):
        measured = []
        record = PartialRecord("add_relu", [tmp_path], on_an_h200, resume=resume, without=without)
        for name in ("a", "b"):
            record.part(name, lambda name=name: measured.append(name) or [])
        return measured

    assert run(resume=False) == ["a", "b"]
    assert run() == []
    assert run(resume=False) == ["a", "b"]
    capsys.readouterr()
    if another == "machine":
        monkeypatch.setattr(partial_record, "_machine", lambda: "GPU-2")
    elif another == "torch":
        versions = runtime.versions() | {"torch": "9"}
        monkeypatch.setattr(runtime, "versions", lambda: versions)
    elif another == "code_sha256":
        (tmp_path / "kernel.cu").write_text("b")
    assert run(without=["eager"] if another == "without" else ()) == ["a", "b"]
    assert f"# add_relu: another {another} than in " in capsys.readouterr().out


def test_what_is_left_is_valid_json_and_read_as_it_was(on_an_h200):
    record = PartialRecord("add_relu", [], on_an_h200)
    record.part("a", lambda: [{"us": float("nan"), "exact": 0.1 + 0.2}])
    json.loads(record.path.read_text(), parse_constant=pytest.fail)
    (row,) = PartialRecord("add_relu", [], on_an_h200, resume=True).parts["a"]
    assert row["us"] != row["us"]
    assert row["exact"] == 0.1 + 0.2


def test_copies_of_a_later_part_are_held_to_the_fastest_of_all(monkeypatch):
    """A GPU stays for seconds in a state in which copies are slower."""
    monkeypatch.setattr(bench, "COPY_PAUSE", 0)
    monkeypatch.setattr(bench.of("add_relu"), "cells", lambda quick: [cell(part="grid"), cell(part="waits")])
    record = bench.run("add_relu", Clock(copies=(500, 500, 500, 500, *[560] * 7, 500, 501, 502, 503)))
    assert [row["us_p50"] for row in record["rows"] if row["part"] == "copy"] == [500, 500, 500, 503]
    assert record["copy_tb_per_s"]["measured_again"] == 7


def test_resume_is_of_what_is_saved(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["add_relu", "--resume"])
    assert "--resume: a run without --save leaves nothing" in capsys.readouterr().err
