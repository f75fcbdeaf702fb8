"""What the host makes of the numbers that a kernel reports: kernels/dispatch/report.py."""

import pytest
import torch

from kernels.dispatch import report

CPU = -1


@pytest.fixture
def numbers():
    """The CPU's numbers, as a kernel writes them."""
    report.tensor(torch.device("cpu"))
    yield report._reports[CPU][1]
    report.clear(CPU)


def _word(kind, a, b, c):
    """The word of the kind, an int64."""
    word = ((a + report.B * b + report.C * c) * 16 + kind) % 2**64
    return word - 2**64 if word >= 2**63 else word


@pytest.mark.parametrize("found", [(0, 0, 0), (3, 70_000, -1), (25, 2**40, -(2**63)), (0, 1, 2**63 - 1)])
def test_what_was_written_is_found(numbers, found):
    numbers[report.CLAIMS] = 1
    assert report.found(CPU) is None
    numbers[report.FOUND], numbers[report.FOUND + 1], numbers[report.FOUND + 2] = found
    numbers[report.KIND] = _word(2, *found)
    assert report.found(CPU) == (2, *found)
    report.clear(CPU)
    assert report.found(CPU) is None


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_number_that_is_still_on_its_way_is_waited_for(numbers, late):
    """The kind is there before one of the numbers, in whose place is what an earlier report left."""
    found, old = (3, 70_000, -1), (4, 5, 6)
    for i in range(3):
        numbers[report.FOUND + i] = old[i] if i == late else found[i]
    numbers[report.KIND] = _word(1, *found)
    assert report.found(CPU) is None
    numbers[report.FOUND + late] = found[late]
    assert report.found(CPU) == (1, *found)
