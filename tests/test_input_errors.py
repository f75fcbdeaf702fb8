"""What the host makes of the numbers that a kernel reports: kernels/dispatch/input_errors.py."""

import threading

import pytest
import torch

from kernels.dispatch import input_errors

CPU = -1


@pytest.fixture
def numbers():
    """The CPU's numbers, as a kernel writes them."""
    input_errors.tensor(torch.device("cpu"))
    yield input_errors._reports[CPU][1]
    input_errors.clear(CPU)


def _word(kind, a, b, c):
    """The word of the kind, an int64."""
    word = ((a + input_errors.DIGEST_B * b + input_errors.DIGEST_C * c) * 16 + kind) % 2**64
    return word - 2**64 if word >= 2**63 else word


@pytest.mark.parametrize("report", [(0, 0, 0), (3, 70_000, -1), (25, 2**40, -(2**63)), (0, 1, 2**63 - 1)])
def test_what_was_written_is_found(numbers, report):
    numbers[input_errors.CLAIMS] = 1
    assert input_errors.found(CPU) is None
    numbers[input_errors.FOUND], numbers[input_errors.FOUND + 1], numbers[input_errors.FOUND + 2] = report
    numbers[input_errors.KIND] = _word(2, *report)
    assert input_errors.found(CPU) == (2, *report)
    input_errors.clear(CPU)
    assert input_errors.found(CPU) is None


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_number_that_is_still_on_its_way_is_waited_for(numbers, late):
    """The kind is there before one of the numbers, in whose place is what an earlier report left."""
    report, old = (3, 70_000, -1), (4, 5, 6)
    for i in range(3):
        numbers[input_errors.FOUND + i] = old[i] if i == late else report[i]
    numbers[input_errors.KIND] = _word(1, *report)
    assert input_errors.found(CPU) is None
    numbers[input_errors.FOUND + late] = report[late]
    assert input_errors.found(CPU) == (1, *report)


class Interrupted(list):
    """Numbers: right behind the first reading of the counter another thread adds to it, if it can."""

    other: threading.Thread | None = None

    def __getitem__(self, i):
        value = super().__getitem__(i)
        if i == input_errors.COUNT and self.other is None:
            self.other = threading.Thread(target=input_errors.add, args=(torch.device("cpu"), 5))
            self.other.start()
            self.other.join(0.2)  # as long as it takes where nothing keeps it; where it must wait, no longer
        return value


def test_what_two_threads_add_is_added(monkeypatch):
    numbers = Interrupted([0] * input_errors.SIZE)
    monkeypatch.setitem(input_errors._reports, CPU, (numbers, numbers))
    input_errors.add(torch.device("cpu"), 3)
    numbers.other.join()
    assert input_errors.count(CPU) == 8
