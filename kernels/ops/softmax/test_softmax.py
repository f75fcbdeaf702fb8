"""softmax against eager, on every backend that this machine has."""

import functools
import importlib
import math
from dataclasses import replace

import pytest
import torch

from ... import runtime
from ...check import Call, Case, check, check_gradients, gradients
from ...check.contract import DEVICE, Dispatch, Gradients, InPlace, OnGpu, Values, kernel_backend
from ...measure.bench import load
from ...measure.cells import Row
from ...measure.judge import by_cell
from . import choice
from .op import OP

INTERPRETED = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


class TestSoftmax(Values, InPlace, Gradients, Dispatch, OnGpu):
    op = "softmax"

    def wrong_input(self, call):
        (x,) = call.tensors
        return [
            ((x.int(),), TypeError, "x must be float32, .*; got int32"),
            ((x[0, 0],), ValueError, r"x must have shape \[\.\.\., N\]; got \[\]"),
        ]

    @INTERPRETED
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
    @pytest.mark.parametrize("few_rows", [0, 8], ids=["long", "parts"])
    def test_longer_rows(self, monkeypatch, few_rows, dtype):
        """The ways of rows too long to be held, on short ones: the launcher takes the limits as an argument."""
        launcher = importlib.import_module("kernels.ops.softmax.triton_launch")
        limits = launcher.Limits(held=32, block=64, few_rows=few_rows)
        for name in ("forward", "backward"):
            monkeypatch.setattr(launcher, name, functools.partial(getattr(launcher, name), limits=limits))
        cases = [Case((3, columns), dtype) for columns in (33, 64, 129)]
        cases += [Case((5, 130), dtype, values=values) for values in ("special", "huge")]
        check(self.op, self.function("triton"), cases=cases)
        check(self.op + "_", self.function("triton", in_place=True), cases=cases[2:3])
        for case in cases[:3]:
            call = self.call(case)
            check_gradients(self.op, self.function("triton"), call, self.needed(call), self.grads(call))
        self.check_rows_of_inf_and_nan("triton", 30, dtype)

    @kernel_backend
    @pytest.mark.parametrize("repeat", [1, 8, 700])
    def test_rows_of_inf_and_nan(self, backend, repeat):
        self.check_rows_of_inf_and_nan(backend, repeat)

    def check_rows_of_inf_and_nan(self, backend, repeat, dtype=torch.float32):
        """A single NaN or Inf makes a row NaN, and so does -Inf if there is nothing else; not so the least number."""
        inf, nan, least = math.inf, math.nan, torch.finfo(dtype).min
        rows = [[inf, 1, 2], [inf, -inf, inf], [nan, 1, 2], [-inf, -inf, -inf], [-inf, 1, -inf], [least, least, -inf]]
        x = torch.tensor(rows, dtype=dtype, device=DEVICE).repeat(1, repeat)
        x[0, 3:], x[2, 3:], x[4, 3:] = 1, 1, -inf
        spec = replace(self.spec, calls=lambda case, device: [Call(str(case), (x,))])
        check(self.op, self.function(backend), spec=spec, cases=[Case(tuple(x.shape), dtype)])

    @kernel_backend
    def test_gradients_that_are_not_finite(self, backend):
        inf = math.inf
        incoming = torch.tensor([[inf, 1, 2], [-inf, inf, 2], [math.nan, 1, 2]], device=DEVICE)
        call = Call("", (torch.tensor([[1.0, 2, 3], [1, 2, -inf], [1, 2, 3]], device=DEVICE),))
        actual, want = (gradients(self.function(b), call, (True,), incoming)[0] for b in (backend, "eager"))
        torch.testing.assert_close(actual, want, equal_nan=True)


def chosen(shape, dtype=torch.float32):
    return choice.auto(torch.empty(shape, dtype=dtype, device="meta"))


class TestAuto:
    @pytest.fixture(autouse=True)
    def _cuda_runs(self, monkeypatch):
        monkeypatch.setattr(choice, "cuda_runs", lambda: True)

    def test_the_recorded_cells_go_to_the_faster_kernel(self):
        """Those of CUDA to CUDA, and all others to Triton that CUDA does not win by more than 12 %."""
        rows = [Row.of(flat) for flat in load("softmax")["rows"] if flat["part"] == "grid"]
        cells = by_cell(rows)
        assert len(cells) > 30
        by_cuda = 0
        for cell in cells:
            triton, cuda = cell["triton"], cell["cuda"]
            backend = chosen(triton.shape, triton.dtype)
            ratio = triton.us_p50 / cuda.us_p50
            assert ratio > 1 if backend == "cuda" else ratio < 1.12, (triton.labels, backend, ratio)
            by_cuda += backend == "cuda"
        assert by_cuda == 16

    def test_its_limits(self):
        sizes = {torch.float32: 32768, torch.float64: 32768, torch.bfloat16: 16384, torch.float16: 16384}
        for dtype, longest in sizes.items():
            assert (chosen((4, longest), dtype), chosen((4, longest + 2), dtype)) == ("triton", "cuda")
        backends = [chosen((4, columns)) for columns in (31, 32, 33, 34, 35)]
        assert backends == ["triton", "triton", "cuda", "triton", "cuda"]
        assert chosen(()) == chosen((3, 0)) == "triton"

    def test_it_is_triton_where_cuda_does_not_run_and_in_a_compiled_graph(self, monkeypatch):
        with monkeypatch.context() as patched:
            patched.setattr(choice, "is_compiling", lambda: True)
            assert chosen((512, 50257)) == "triton"
        monkeypatch.setattr(choice, "cuda_runs", lambda: False)
        assert chosen((512, 50257)) == "triton"

    def test_the_op_goes_by_it(self):
        assert OP.auto is choice.auto
