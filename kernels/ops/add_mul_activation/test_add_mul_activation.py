"""add_mul_activation against eager, on every backend that this machine has; and the lecture's first two steps."""

from fractions import Fraction

import pytest
import torch

from kernels.check import testing
from kernels.ops.add_mul_activation.eager import FUNCTIONS
from kernels.check.contract import DEVICE, PointwiseContract, every_backend
from kernels.check.testing import Case


class TestAddMulActivation(PointwiseContract):
    op = "add_mul_activation"
    options = tuple((0.5, activation) for activation in FUNCTIONS)

    def backward_arguments(self, call):
        x, bias, y = call.tensors
        out = testing.reference(self.op)(*call.arguments())
        saved = (None, x, bias, y) if call.options[1] in ("gelu", "silu") else (out, None, None, None)
        return torch.randn_like(out), *saved, *call.options, True, True, True

    def wrong_input(self, x, bias, y, multiplier, activation):
        return [
            ((x, bias, y.half(), 0.5, "relu"), TypeError, "y must have x's dtype, float32; got float16"),
            ((x, bias, y[:-1], 0.5, "relu"), ValueError, r"y must have shape \[5, 24\].*; got \[4, 24\]"),
            ((x, bias, y, "2", "relu"), TypeError, "multiplier must be a number; got str"),
            ((x, bias, y, x, "relu"), TypeError, "multiplier must be a number; got Tensor"),
            ((x, bias, y, 0.5, "swish"), ValueError, "activation must be one of relu, .*identity; got 'swish'"),
        ]

    @every_backend
    def test_in_place_with_y(self, backend):
        function = self.function(backend, in_place=True)
        memory = torch.randn(6, 24, device=DEVICE)
        bias = torch.randn(24, device=DEVICE)
        with pytest.raises(ValueError, match="y must be x itself or not overlap it"):
            function(memory[:5], bias, memory[1:])
        x = memory[:5].clone()
        want = self.function(backend)(x, bias, x.clone(), 0.5)
        assert torch.equal(function(x, bias, x, 0.5), want)
        # What is not contiguous is read before x is written.
        square = torch.randn(24, 24, device=DEVICE)
        want = self.function(backend)(square, bias, square.t(), 0.5)
        assert torch.equal(function(square, bias, square.t(), 0.5), want)

    @every_backend
    def test_numbers_of_every_kind_multiply(self, backend):
        import numpy as np

        x, bias, y = self.call().tensors
        for two in (2, 2.0, np.float32(2), np.int64(2), Fraction(2)):
            assert torch.equal(self.function(backend)(x, bias, y, two), self.function(backend)(x, bias, y, 2.0))


@pytest.mark.parametrize("shape", [(5, 24), (3, 1025), (40, 1023), (700, 4)], ids=str)
def test_as_generated_and_cleaned(shape):
    from kernels.ops.add_mul_activation import triton_kernel

    case = Case(shape)
    x, bias, y = case.tensor(1, DEVICE), case.tensor(2, DEVICE, shape[-1:]), case.tensor(3, DEVICE)
    want = testing.expected("add_mul_activation", testing.Call("", (x, bias, y), (0.5, "sigmoid")))
    for launch in (
        triton_kernel.launch_as_generated,
        lambda x, bias, y, out: triton_kernel.launch_cleaned(x, bias, y, 0.5, out),
    ):
        out = torch.full_like(x, torch.nan)
        launch(x, bias, y, out)
        testing.compare(out, want)
