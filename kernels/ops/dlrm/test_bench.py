"""dlrm_forward's benchmark: every implementation computes the same model."""

import shutil
from dataclasses import replace

import pytest
import torch

import kernels

from ...check import Call
from ...dispatch.core import on_host
from ...inductor import together
from ...measure.cells import FirstCall, Row
from . import bench
from .eager import dlrm_forward


def tensors_of(cell):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(cell.dtype)

    return cell.inputs(draw, lambda n, below: torch.randint(below, (n,), generator=generator), *cell.shared(draw))


@pytest.mark.parametrize("count", [3, 16])
def test_every_implementation_computes_the_reference(count, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    cell = bench._cell("bandwidth", bench.of_tables(count), 50, autotuned=True)
    tensors = tensors_of(cell)
    want = cell.spec.reference(*tensors)
    assert len(cell.spec.arguments) == len(tensors)
    (bound,) = cell.spec.scale.errors(cell.spec.reference, Call("", tensors), [want.double()])
    settings = [f"torch.compile, {setting}" for setting in together() if count > bench.FUSED]
    assert {*cell.implementations} == {"eager", "torch.compile", *settings, "max-autotune", "cuda"}
    for build in cell.implementations.values():
        with on_host():
            out = build()(*tensors)
        assert ((out - want).abs() <= 2 * bound).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_peer_of_main_computes_the_reference(dtype, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    (model,) = (replace(model, heights=(50,) * 26) for model in bench.MAINS if model.dtype == dtype)
    monkeypatch.setattr(bench, "MAINS", (model,))
    cell = bench._cell("main", model, 20, autotuned=True)
    settings = [f"torch.compile, {setting}" for setting in together()]
    assert {*cell.implementations} == {
        "cuda", *(name + how for name in ("eager", "torch.compile", *settings, "max-autotune")
                  for how in ("", bench.PADDED))
    }
    tensors = tensors_of(cell)
    want = cell.spec.reference(*tensors)
    (bound,) = cell.spec.scale.errors(cell.spec.reference, Call("", tensors), [want.double()])
    for name, build in cell.implementations.items():
        if name != "cuda":
            assert ((build()(*tensors) - want).abs() <= 2 * bound).all(), name


def test_what_is_measured():
    cells = {(cell.part, *cell.labels.values()) for cell in bench.cells() if not isinstance(cell, FirstCall)}
    assert {("main", "main", rows, "float32", "tf32") for rows in (128, 2048, 16384, 65536)} < cells
    assert {("main", "main", rows, "bfloat16") for rows in (128, 2048, 16384, 65536)} < cells
    assert len([*bench.sweep()]) == 4 * 6


def test_the_first_calls_statements_are_calls():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    cells = [cell for cell in bench.cells(True) if isinstance(cell, FirstCall)]
    assert [cell.compiles for cell in cells] == [False, True]
    for cell in cells:
        calls = cell.calls
        tensors = calls.inputs(draw, lambda n, below: torch.randint(below, (n,), generator=generator))
        namespace = {"eager": dlrm_forward, "dlrm_forward": kernels.dlrm_forward}
        namespace |= dict(zip(calls.names, tensors, strict=True))
        with on_host():
            outs = [eval(calls.statements[name], namespace) for name in ("eager", *cell.implementations)]
        torch.testing.assert_close(*outs)


def test_a_limit_is_of_both_times():
    target = bench.Within(3.0, 15.0, "bandwidth")
    row = Row("dlrm_forward", "bandwidth", "functional", "cuda", {"rows": 2048}, us_p50=2.9, call_us=14.0)
    assert target.judge([row], {}).met
    for other in ({"us_p50": 3.1, "call_us": 14.0}, {"us_p50": 2.9, "call_us": 16.0}, {"us_p50": None, "call_us": 1.0}):
        assert not target.judge([Row(row.op, row.part, row.form, "cuda", row.labels, **other)], {}).met
    assert not target.judge([], {}).met
    assert not bench.Within(3.0, 15.0, "bandwidth", {"rows": 128}).judge([row], {}).met
    assert bench.Within(3.0, 15.0, "bandwidth", {"rows": 2048}).judge([row], {}).met


def test_the_exported_model_is_the_reference():
    cell = bench._latency(bench.MINI, 50, quick=False)
    tensors = tensors_of(cell)
    served, inputs = bench._Served(bench.MINI, tensors), (tensors[0], *tensors[4:7])
    with torch.no_grad():
        want = cell.spec.reference(*tensors)
        torch.testing.assert_close(served(*inputs), want)
        torch.testing.assert_close(torch.export.export(served, inputs).module()(*inputs), want)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
def test_aot_inductors_package_is_the_reference():
    cell = bench._latency(bench.MINI, 50, quick=False)
    tensors = tensors_of(cell)
    with torch.no_grad():
        packaged = cell.implementations["AOTInductor"]()
        for _ in range(2):
            torch.testing.assert_close(packaged(*tensors), cell.spec.reference(*tensors))


def latency_row(who, us):
    return Row("dlrm_forward", "latency", "functional", who, {"rows": 2048}, call_us=us)


def test_a_limit_between_events_is_of_each_that_is_named():
    target = bench.ByEvents((("a", 15.0), ("b", 6.0)))
    assert target.judge([latency_row("a", 14.0), latency_row("b", 6.0), latency_row("c", 99.0)], {}).met
    assert target.judge([latency_row("a", 14.0), latency_row("b", 6.1)], {}).misses == ["b: 6.1 µs, 6.0 asked"]
    assert not target.judge([latency_row("a", 14.0)], {}).met
    assert not target.judge([latency_row("a", 14.0), latency_row("b", None)], {}).met


def test_the_winner_of_each_cell_is_told():
    def row(who, rows, us):
        return Row("dlrm_forward", "grid", "functional", who, {"model": "mini", "rows": rows}, us_p50=us)

    rows = [row("cuda", 256, 2.0), row("eager", 256, 9.0), row("cuda", 512, 4.0), row("torch.compile", 512, 3.0)]
    verdict = bench.Winners("grid").judge(rows, {})
    assert not verdict.met
    assert verdict.figure == "fastest of 2 cells: cuda in 1, torch.compile in 1"
    assert verdict.misses == ["512 mini: torch.compile 3.00 µs, cuda 4.00 µs"]
    assert bench.Winners("grid").judge(rows[:2], {}).met
    assert not bench.Winners("grid").judge([row("cuda", 256, None)], {}).met
