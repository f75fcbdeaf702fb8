"""The benchmark of serving: what becomes a row, and what is FAILED."""

import pytest
import torch
from exported_models import trained

from kernels import runtime
from kernels.measure import records
from model.config import Precision
from model.export import MOST_OFF, sample
from model.serving import bench
from model.serving.served import Served

ROW = {"rows": 128, "implementation": "eager", "threads": 1, "us": 250.0, "us_p99": 300.0, "calls_per_s": 4000.0}


@pytest.fixture
def program(tmp_path):
    """A program that says and does this."""

    def made(stdout="", stderr="", status=0):
        path = tmp_path / "program"
        path.write_text(f"#!/bin/sh\necho '{stdout}'\necho '{stderr}' >&2\nexit {status}\n")
        path.chmod(0o755)
        return [path]

    return made


TOLD = "batch     1, 2 threads: p50 0.0421 ms, p99 0.1000 ms, 30000 calls and 30000 rows a second"


def test_a_row_of_the_program(program):
    row = bench._cpp(1, bench.CPP, 2, "ok", program(TOLD))
    assert row == {
        "rows": 1, "implementation": "run_exported", "threads": 2, "match": "ok", "us": pytest.approx(42.1),
        "us_p99": pytest.approx(100), "calls_per_s": 30000,
    }  # fmt: skip


@pytest.mark.parametrize(
    "says", [{"stdout": "nothing"}, {"stdout": TOLD, "status": 2}, {"stdout": TOLD, "stderr": "a CUDA graph failed"}]
)
def test_a_program_that_fails(program, says):
    row = bench._cpp(1, bench.CPP, 2, "ok", program(**says))
    assert row["match"].startswith("FAILED: ")
    assert "us" not in row


def test_a_program_whose_check_failed_is_not_run(program):
    assert bench._cpp(1, bench.CPP, 2, "FAILED: NOT eager's", ["/nowhere"])["match"] == "FAILED: NOT eager's"


def test_what_is_not_eagers_has_no_time(monkeypatch):
    monkeypatch.setattr(bench, "ROUNDS", 2)
    want = torch.rand(5)

    def raises():
        raise RuntimeError("no")

    calls = {
        "eager": lambda: want, "near": lambda: want + 0.5 * MOST_OFF["cuda", Precision.FP32],
        "off": lambda: want + 0.01, "nan": lambda: want * torch.nan, "raises": raises,
        bench.COPIES: lambda: torch.zeros(5),
    }  # fmt: skip
    rows = bench._latencies(5, calls)
    assert [row["implementation"] for row in rows if row["match"] == "ok"] == ["eager", "near", bench.COPIES]
    assert [row["implementation"] for row in rows if "us" in row] == ["eager", "near", bench.COPIES]
    assert all(row["match"].startswith("FAILED") for row in rows if "us" not in row)
    rows = bench._latencies(5, {name: calls[name] for name in ("eager", "off")}, Precision.BF16)
    assert [row["match"] for row in rows] == ["ok", "ok"]


@pytest.mark.slow
@pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
def test_the_package_as_a_zip_file(exported_folder, tmp_path):
    served = Served(trained())
    with torch.no_grad():
        loaded = bench._package(exported_folder, served, tmp_path)
        inputs = sample(served, 7, 0)
        torch.testing.assert_close(loaded(*inputs), served(*inputs))


def test_what_was_recorded_is_shown(tmp_path, capsys):
    bench.show(tmp_path)
    assert "nothing is recorded: python -m model.serving.bench --save" in capsys.readouterr().out
    records.save(bench.record([ROW | {"match": "ok"}]) | {"GPU": "NVIDIA H200"}, tmp_path)
    bench.show(tmp_path)
    shown = capsys.readouterr().out
    assert "Recorded on NVIDIA H200" in shown
    assert "p50    250.0 µs" in shown


@pytest.mark.skipif(runtime.device().type == "cuda", reason="there is a GPU")
def test_without_a_gpu(capsys):
    assert bench.main([]) == 0
    assert "No GPU here: nothing is measured." in capsys.readouterr().out


def test_the_models_ids_are_known():
    served = bench.model(50)
    counts, ids = sample(served, 64, 0)
    assert ids.shape == (64, 26)
    assert served(counts, ids).shape == (64,)
