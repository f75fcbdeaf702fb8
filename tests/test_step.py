"""The step's gradient of the loss is autograd's, to the bit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model.config import Precision
from model.device import autocast
from model.step import on_the_device


class Logits(nn.Module):
    """A model of the dense features alone."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(13, 1, dtype=dtype)

    def forward(self, dense, sparse):
        return self.linear(dense).squeeze(1)


@pytest.mark.parametrize("special", [None, float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_and_its_gradient_are_autograds(dtype, precision, rows, special):
    theirs, ours = Logits(dtype), Logits(dtype)
    labels, dense = torch.randint(0, 2, (rows,)).float(), torch.randn(rows, 13, dtype=dtype)
    if special is not None:
        dense[0, 3] = special
    with autocast(dense.device, precision):
        loss = F.binary_cross_entropy_with_logits(theirs(dense, None), labels)
    loss.backward()
    no_optimizer = SimpleNamespace(zero_grad=lambda **_: None, step=lambda: None)
    actual = on_the_device(ours, no_optimizer, labels, dense, None, precision)
    pairs = [(actual, loss.detach())]
    pairs += [(a.grad, b.grad) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
