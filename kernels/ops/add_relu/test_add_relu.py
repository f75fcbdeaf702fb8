"""add_relu against eager, on every backend that this machine has."""

import torch

from ...check.contract import DEVICE, PointwiseContract, every_backend


class TestAddRelu(PointwiseContract):
    op = "add_relu"

    def wrong_input(self, call):
        x, bias = call.tensors
        return [
            ((x.int(), bias.int()), TypeError, "x must be float32, .*; got int32"),
            ((x[0, 0], bias), ValueError, r"x must have shape \[\.\.\., N\]; got \[\]"),
        ]

    @every_backend
    def test_in_place_with_a_bias_strided_through_x(self, backend):
        """The bias counts as it was before the call, whatever its strides."""
        square, wide = torch.randn(24, 24, device=DEVICE), torch.randn(24, 48, device=DEVICE)
        for x, bias in ((square, square[:, 3]), (wide[:, ::2], wide[0, :24])):
            want = self.function(backend)(x, bias)
            assert torch.equal(self.function(backend, in_place=True)(x, bias), want)
