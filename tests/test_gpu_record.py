"""model.gpu: the recorder runs through in small, rejects a wrong result, and reads what ncu prints."""

import pytest
import torch

from kernels.measure import records
from model.gpu import __main__ as command
from model.gpu import record

CPU = torch.device("cpu")


def test_everything_is_measured_in_small(tmp_path, capsys):
    found = record.record(CPU, record.PARTS, record.SMALL)
    assert {row["part"] for row in found["rows"]} == set(record.PARTS) - {"copy", "ncu"}
    assert {row["match"] for row in found["rows"]} == {"ok"}
    assert all(row["us_p50"] > 0 for row in found["rows"] if row["part"] != "latency")
    assert "ncu      0 lines not run" in capsys.readouterr().out

    records.save(found | {"GPU": "a GPU"}, tmp_path)
    saved = records.recorded(record.NAME, records.slug("a GPU"), tmp_path)
    assert len(saved) == len(found["rows"])


def test_a_wrong_result_has_no_time(monkeypatch):
    monkeypatch.setattr(record, "copy_kernel", {grid: lambda *arguments, **named: None for grid in ((2,), (4,))})
    recorder = record.Recorder(CPU, record.SMALL)
    recorder.flight()
    assert [row["match"] for row in recorder.rows] == ["FAILED: the result is wrong"] * 2
    assert not any("us_p50" in row for row in recorder.rows)


def test_the_command_asks_for_a_gpu_and_saves_nothing_less(capsys, monkeypatch):
    monkeypatch.setattr("kernels.runtime.device", lambda: CPU)
    for arguments in ([], ["--save", "--only", "copy"], ["--only", "kopie"]):
        with pytest.raises(SystemExit, match="2"):
            command.main(arguments)
    assert "expected some of stride" in capsys.readouterr().err
    assert command.main(["launch", "--device", "cpu"]) == 0


def test_what_ncu_prints():
    printed = """==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "strided_kernel": 0%....100% - 9 passes
[7] python3.12@127.0.0.1
  strided_kernel (32768, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    dram__bytes_read.sum     Mbyte     134.2
"""
    found = record.ncu_lines(printed)
    assert found["why"] == ""
    assert found["lines"][0] == "python"
    assert len(found["lines"]) == 3
    refused = record.ncu_lines("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    assert refused == {"lines": [], "why": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"}
    assert record.ncu_lines("")["why"] == "no metric came"
