"""softmax against eager, on every backend that this machine has."""

import functools
import importlib
import math
from dataclasses import replace

import pytest
import torch

from kernels import runtime
from kernels.check import Call, Case, check, check_gradients, gradients
from kernels.check.contract import DEVICE, Dispatch, Gradients, InPlace, OnGpu, Values, kernel_backend

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
        found, want = (gradients(self.function(b), call, (True,), incoming)[0] for b in (backend, "eager"))
        torch.testing.assert_close(found, want, equal_nan=True)
