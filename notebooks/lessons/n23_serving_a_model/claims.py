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
claim(NOTEBOOK, "No call got a mixture.", _mixtures)
claim(NOTEBOOK, "In this run, most of what the package loses for 2048 rows is its look-up.", _look_ups)
