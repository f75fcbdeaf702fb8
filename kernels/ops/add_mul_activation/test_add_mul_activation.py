"""add_mul_activation against eager, on every backend that this machine has."""

from fractions import Fraction

import numpy as np
import torch

from ...check.contract import DEVICE, PointwiseContract, every_backend


class TestAddMulActivation(PointwiseContract):
    op = "add_mul_activation"

    def wrong_input(self, call):
        x, bias, y = call.tensors
        return [
            ((x, bias, y, "2", "relu"), TypeError, "multiplier must be a number or a 0-d tensor; got str"),
            ((x, bias, y, x, "relu"), TypeError, "multiplier must be a number, or a 0-d tensor .*; got one of shape"),
            ((x, bias, y, 0.5, "swish"), ValueError, "activation must be one of relu, .*identity; got 'swish'"),
            ((x, bias, y, 0.5, ["relu"]), (TypeError, ValueError), "activation must be one of .*; got \\['relu'\\]"),
        ]

    @every_backend
    def test_in_place_with_y(self, backend):
        function = self.function(backend, in_place=True)
        x, bias, _ = self.call().tensors
        want = self.function(backend)(x, bias, x.clone(), 0.5)
        assert torch.equal(function(x, bias, x, 0.5), want)
        # What is not contiguous is read before x is written.
        square = torch.randn(24, 24, device=DEVICE)
        want = self.function(backend)(square, bias, square.t(), 0.5)
        assert torch.equal(function(square, bias, square.t(), 0.5), want)

    @every_backend
    def test_numbers_of_every_kind_multiply(self, backend):
        x, bias, y = self.call().tensors
        kinds = (2, np.float32(2), np.int64(2), Fraction(2), torch.tensor(2.0), torch.tensor(2.0, device=DEVICE))
        for two in kinds:
            assert torch.equal(self.function(backend)(x, bias, y, two), self.function(backend)(x, bias, y, 2.0))
