"""dlrm_forward's benchmark: every implementation computes the same model."""

import pytest
import torch

import kernels
from kernels.check import Call
from kernels.dispatch.core import on_host
from kernels.measure.cells import FirstCall, Row
from kernels.ops.dlrm import bench
from kernels.ops.dlrm.eager import dlrm_forward


@pytest.mark.parametrize("count", [3, 16])
def test_every_implementation_computes_the_reference(count, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    generator = torch.Generator().manual_seed(0)
    cell = bench._cell("bandwidth", bench.of_tables(count), 50, autotuned=True)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    tensors = cell.inputs(draw, lambda n, below: torch.randint(below, (n,), generator=generator), *cell.shared(draw))
    want = cell.spec.reference(*tensors)
    assert len(cell.spec.arguments) == len(tensors)
    (bound,) = cell.spec.scale.errors(cell.spec.reference, Call("", tensors), [want.double()])
    assert {*cell.implementations} == {"eager", "torch.compile", bench.TOGETHER, "max-autotune", "cuda"}
    for build in cell.implementations.values():
        with on_host():
            found = build()(*tensors)
        assert ((found - want).abs() <= 2 * bound).all()


def test_the_first_calls_statements_are_calls():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    found = [cell for cell in bench.cells(True) if isinstance(cell, FirstCall)]
    assert [cell.compiles for cell in found] == [False, True]
    for cell in found:
        calls = cell.calls
        tensors = calls.inputs(draw, lambda n, below: torch.randint(below, (n,), generator=generator))
        given = {"eager": dlrm_forward, "dlrm_forward": kernels.dlrm_forward}
        given |= dict(zip(calls.names, tensors, strict=True))
        with on_host():
            outs = [eval(calls.statements[name], given) for name in ("eager", *cell.implementations)]
        torch.testing.assert_close(*outs)


def test_a_limit_is_of_both_times():
    target = bench.Within(3.0, 15.0, "bandwidth")
    row = Row("dlrm_forward", "bandwidth", "functional", "cuda", {"rows": 2048}, us_p50=2.9, call_us=14.0)
    assert target.judge([row], {}).met
    for other in ({"us_p50": 3.1, "call_us": 14.0}, {"us_p50": 2.9, "call_us": 16.0}, {"us_p50": None, "call_us": 1.0}):
        assert not target.judge([Row(row.op, row.part, row.form, "cuda", row.labels, **other)], {}).met
    assert not target.judge([], {}).met
