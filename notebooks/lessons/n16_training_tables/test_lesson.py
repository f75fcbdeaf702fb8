"""The update's arithmetic, and a capture that is replayed."""

from __future__ import annotations

import pytest
import torch

from kernels import runtime
from lessons.n16_training_tables import arithmetic, captured_update

DEVICE = runtime.device()


def test_segments_are_those_of_a_batch():
    lengths = arithmetic.segments(1000)
    assert list(lengths)[:2] == ["C1", "C2"]
    assert {int(segments.sum()) for segments in lengths.values()} == {1000}
    assert lengths["C9"].max() / 1000 == pytest.approx(0.885, abs=0.03)


def test_a_capture_keeps_a_number_and_follows_a_tensor():
    kept, followed = torch.zeros(2, device=DEVICE).unbind()
    rate = torch.ones((), device=DEVICE)
    steps = [captured_update.captured(torch.Tensor.add_, *arguments) for arguments in ((kept, 1.0), (followed, rate))]
    kept.zero_(), followed.zero_()
    rate.fill_(0.25)
    for step in steps:
        step()
    assert (kept.item(), followed.item()) == (1.0, 0.25)


def test_orders_give_different_sums():
    assert len(arithmetic.sums_in_orders(1000, orders=4)) > 1
    assert len(arithmetic.sums_in_orders(1, orders=4)) == 1
