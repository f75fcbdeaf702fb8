"""python -m model.bench.backend, as far as it runs without a GPU."""

import argparse

import pytest
import torch

from kernels.measure import records
from model.bench import backend
from model.config import Precision


@pytest.mark.parametrize("trains", [False, True])
def test_a_cell_on_a_cpu(monkeypatch, trains):
    """What is compiled is eager, nothing is captured, and one implementation is wrong."""
    ways = {"inductor": "eager", "fused_kernels": "eager", "wrong": lambda gm, inputs: wrong(gm)}
    monkeypatch.setattr(backend, "implementations", lambda autotune: {k: {"backend": way} for k, way in ways.items()})
    monkeypatch.setattr(backend, "captured", lambda function: function)
    in_graphs = {"inductor": [1.0, 2.0, 3.0], "fused_kernels": [0.5, 1.5, 3.5]}
    monkeypatch.setattr(backend, "by_graphs", lambda *arguments: in_graphs)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(backend, "ROUNDS", 3)
    options = argparse.Namespace(autotune=False, most_rows=50)
    row = backend.cell("small", 3, Precision.FP32, trains, options, torch.device("cpu"))
    assert row["match"].startswith("FAILED: wrong is ")
    assert not backend.is_ours(row)
    ways["fused_kernels"] = ways["wrong"]
    assert backend.is_ours(backend.cell("small", 3, Precision.FP32, trains, options, torch.device("cpu")))
    for what in ("replay", "call"):
        assert {name: sorted(times) == times for name, times in row[what].items()} == {
            "inductor": True, "fused_kernels": True
        }
    first, second, *graphs, replaced = backend.lines(row)
    assert [line.split("µs  ")[1].split() for line in graphs] == [
        ["inductor", "2.0", "fused_kernels", "1.5"] for _ in range(not trains)
    ]
    assert first.startswith(f"small       3 fp32 {'step' if trains else 'inference'}")
    assert " ratio " in second
    assert "replaced: nothing  FAILED: wrong is " in replaced


def test_each_result_is_held_to_its_own_limit():
    ones, zeros, small = torch.ones(4), torch.zeros(4), torch.full((4,), 1e-3)
    assert backend.errors([ones, zeros], [ones, zeros]) == [0, 0]
    assert backend.errors([ones, zeros], [ones, small]) == pytest.approx([0, 1])  # a small gradient that is missing
    assert backend.errors([ones, small], [ones, zeros])[1] > 1
    assert backend.too_far([ones, small], [ones, small], [1e-4, 1e-4]) == ""
    failure = backend.too_far([ones, small * 1.1], [ones, small], [1.0, 1e-2])
    assert failure == "is 1.0e-01 from float64 in result 1, and may be 1.0e-02"
    assert backend.too_far([ones, small * torch.nan], [ones, small], [1, 1])
    assert backend.errors([ones + 1e-8], [ones.double()]) == [0]  # in float32 it is one
    assert backend.errors([ones.double() + 1e-8], [ones.double()]) == pytest.approx([1e-8])


@pytest.mark.parametrize("factor", [1.5, 2.5])
def test_a_result_may_be_off_by_twice_what_eagers_is(monkeypatch, factor):
    def errors(results, wanted):
        return [1.0] * len(wanted) if not seen and not seen.append(1) else [factor] * len(wanted)

    seen, ways = [], {"inductor": {"backend": "eager"}, "fused_kernels": {"backend": "eager"}}
    monkeypatch.setattr(backend, "implementations", lambda autotune: ways)
    monkeypatch.setattr(backend, "captured", lambda function: function)
    monkeypatch.setattr(backend, "by_graphs", lambda *arguments: {})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(backend, "ROUNDS", 1)
    monkeypatch.setattr(backend, "errors", errors)
    options = argparse.Namespace(autotune=False, most_rows=50)
    row = backend.cell("small", 3, Precision.FP32, False, options, torch.device("cpu"))
    assert (row["match"] == "ok") == (factor < 2)


def test_what_is_recorded_is_not_slower_than_torch_compile():
    """By replay: a call's time is the host's, and noisy."""
    rows = records.load(backend.NAME)["rows"]
    assert len(rows) == 90
    assert backend.slower(rows, "replay") == []


def wrong(gm):
    return lambda *inputs: tuple(out + 1 for out in gm(*inputs))


def test_the_ratio_is_to_the_fastest_peer():
    times = {"inductor": [3.0, 4.0, 9.0], "max-autotune": [2.0, 2.0, 9.0], "fused_kernels": [1.0, 3.0, 3.0]}
    assert backend.ratio(times) == 1.5
    failed = {"inductor": [3.0, 3.0, 3.0]}
    assert not backend.ratio(failed) <= backend.SLOWER
    row = {"preset": "small", "rows": 1, "precision": "fp32", "trains": False, "replaced": [], "match": "ok"}
    row |= {"call": times, "replay": failed}
    assert [line.endswith("SLOWER") for line in backend.lines(row)] == [True, True, False]
    assert backend.slower([row], "replay") == backend.slower([row], "call") == [row]
    row["replay"] = {"inductor": [2.0, 2.0, 2.0], "fused_kernels": [1.0, 2.06, 3.0]}
    assert backend.slower([row], "replay") == []
    assert backend.verdicts([row])[0] == "by replay 0 of 1"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert backend.main([]) == 2
    assert "no CUDA device" in capsys.readouterr().out
