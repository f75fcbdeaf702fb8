"""Calls that are timed one by one, without a GPU: everything but the clock."""

import dataclasses

import pytest
import torch
from fake_clock import Clock, cell, rows_of

from kernels.measure import bench, latency, runs
from kernels.measure.cells import FRESH, IN_A_GRAPH, Latency


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(runs, "INPUT_BYTES", 5000)
    monkeypatch.setattr(latency, "CALLS", 10)


def measured(clock: Clock, captured: tuple[str, ...] = ("eager",), **implementations) -> dict:
    plain = cell(**implementations)
    arguments = {name: getattr(plain, name) for name in ("op", "part", "form", "labels", "inputs", "implementations")}
    return rows_of(bench.measure(Latency(**arguments, captured=captured), clock))


def test_each_way_has_its_row():
    def other(x, bias):
        return torch.relu(x + bias)

    rows = measured(Clock(times=[*range(1, 10), 100]), other=other)
    assert list(rows) == ["eager", "eager" + FRESH, "eager" + IN_A_GRAPH, "eager" + IN_A_GRAPH + FRESH,
                          "other", "other" + FRESH]  # fmt: skip
    for row in rows.values():
        assert row.match == "ok"
        assert (row.call_us, row.call_us_low, row.call_us_high) == (5.5, 5.5, 5.5)
        assert (row.call_us_mean, row.call_us_p99, row.us_p50) == (14.5, 100.0, None)
    assert "mean 14.5, p99 100 µs a call" in bench.line(rows["eager"])
    assert dataclasses.asdict(type(row).of(row.flat())) == dataclasses.asdict(row)


def test_fresh_inputs_are_others_each_time():
    seen = []

    def remembering(x, bias):
        seen.append(x.flatten()[0].item())
        return torch.relu(x + bias)

    class Counting(Clock):
        def calls(self, call, count):
            before = len(seen)
            times = super().calls(call, count)
            different.append(len({*seen[before:]}))
            return times

    different = []
    rows = measured(Counting(), captured=("remembering",), remembering=remembering)
    assert {row.match for row in rows.values()} == {"ok"}
    # eager's two ways, then as called, with fresh inputs, as a graph, with fresh inputs; each warmed up before.
    repeat = different[:12]
    assert repeat == [0, 0, 0, 0, 1, 1, 20, 10, 1, 1, 20, 10]


@pytest.mark.parametrize("captured", [(), ("wrong",)])
def test_what_does_not_match_gets_no_time(captured):
    rows = measured(Clock(), captured=captured, wrong=lambda x, bias: torch.relu(x + bias) + 1e-3)
    assert rows["eager"].match == "ok"
    assert rows["wrong"].match.startswith("FAILED: ")
    assert rows["wrong"].call_us is None
    assert "wrong" + FRESH not in rows


def test_what_raises_fails_alone():
    def raising(x, bias):
        raise RuntimeError("no")

    rows = measured(Clock(), captured=("raising",), raising=raising)
    assert rows["raising"].match == "FAILED: RuntimeError: no"
    assert rows["eager"].match == "ok"


def test_a_graph_that_does_nothing_is_found():
    class Asleep(Clock):
        def capture(self, work):
            return (lambda: None), work()

    assert measured(Asleep())["eager"].match.startswith("FAILED: ")
