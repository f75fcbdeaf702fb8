"""23, Serving a model: each number in its prose stands in an output, and so does what it says of one."""

from __future__ import annotations

import re

from lessons.shared.claim import claim, printed, quotes

NOTEBOOK = "23"
quotes(NOTEBOOK)


def _numbers(cell: str, line: str) -> list[float]:
    """What the line of this pattern has in its groups."""
    return [float(number) for number in re.search(line, printed(NOTEBOOK, cell)).groups()]


def _bytes() -> tuple:
    """How many times the bytes JSON has. Without the bytes' share, writing and reading are most of what it adds."""
    binary, text, written = _numbers("bodies", r"binary ([\d.]+) ms, JSON ([\d.]+) ms, of which ([\d.]+) ms to write")
    (times,) = _numbers("bodies", r"JSON has ([\d.]+) × the bytes")
    assert 0 < written < text - times * binary
    return (times,)


def _calls() -> tuple[float, float]:
    """ms of a call of one row, and of 64."""
    one, many = _numbers("calls", r"a call takes ([\d.]+) ms for 1 row and ([\d.]+) ms for 64")
    return one, many


def _fixed_part() -> tuple:
    """What the 63 other rows do not explain is at least half of a call of one row."""
    one, many = _calls()
    assert one - (many - one) / 63 >= one / 2
    return ()


def _batches() -> tuple:
    """Several times: at least twice, and less than the calls alone would give."""
    one, many = _calls()
    alone, together = _numbers("batched", r"2048 requests that wait, .*: ([\d.]+) ms if 1 .*, ([\d.]+) ms if 64 are")
    calls_of_one, calls = _numbers("batched", r"the calls alone, .*: ([\d.]+) ms of 1 row each, ([\d.]+) ms of 64")
    assert 2 <= alone / together < 64 * one / many
    assert together < calls_of_one
    assert calls < together / 2
    return ()


def _patience() -> tuple:
    line = r"no other follows, patience ([\d.]+) ms: ([\d.]+) ms if 1 .*, ([\d.]+) ms if 64 are"
    patience, alone, together = _numbers("batched", line)
    assert alone < patience / 2 < patience <= together < 1.5 * patience
    return (patience,)


def _mixtures() -> tuple:
    assert "{'old': " in printed(NOTEBOOK, "cell-45")
    assert "a mixture" not in printed(NOTEBOOK, "cell-45")
    return ()


def _look_ups() -> tuple:
    faster = re.findall("faster in all turns: (.*)", printed(NOTEBOOK, "onnx-times"))
    assert faster == ["package", "onnxruntime"]
    look_ups, calls = _numbers("onnx-why", r"of the look-ups ([\d.]+) ms, of the calls ([\d.]+)")
    assert calls / 2 < look_ups < calls
    return ()


claim(
    NOTEBOOK,
    "JSON has only {:.1f} × the bytes. The rest of its time goes into the digits: Python writes them, and the server "
    "reads them.",
    _bytes,
)
claim(NOTEBOOK, "Most of the time of a call of one row does not grow with the rows.", _fixed_part)
claim(
    NOTEBOOK,
    "Under load, batches serve several times as many requests a second. They are also faster than calls of one row "
    "without any queue. The gain is smaller than that of the calls alone: most of the time that is left is Python's,",
    _batches,
)
claim(
    NOTEBOOK,
    "Without load, a batch only costs: a request that no other follows waits for all of the patience, here {:.0f} ms.",
    _patience,
)
claim(NOTEBOOK, "No call got a mixture.", _mixtures)
claim(NOTEBOOK, "In this run, most of what the package loses for 2048 rows is its look-up.", _look_ups)
