"""11, Make it an op: what `python -m lessons.n11_make_it_an_op --save` recorded, and add_relu's record."""

from __future__ import annotations

import re

from lessons.n11_make_it_an_op import recorded
from lessons.n11_make_it_an_op.recorded import times
from lessons.shared.claim import claim, printed
from lessons.shared.records import ADD_RELU

NOTEBOOK = "11"


def _wall() -> tuple:
    formula, op = times("wall", "formula"), times("wall", "op")
    assert 1.9 < op.us / formula.us < 2.1
    return (formula.us,)


def _plus() -> tuple:
    return (times("call", "x + 1").us,)


def _above(part: str, name: str, below: str, of: str = "call") -> float:
    """µs by which a call is longer than another."""
    longer, shorter = times(part, name), times(of, below)
    assert longer.low > shorter.high, name
    return longer.us - shorter.us


def _together() -> tuple:
    library, formula = times("gradient", "torch.library"), times("gradient", "relu(x + bias)")
    assert library.us > 3 * formula.us
    return library.us, formula.us


def _declaration() -> tuple:
    call, gradient = times("call", "triton"), times("gradient", "triton")
    assert max(call.us, times("call", "cuda").us) < times("call", "x + 1").us
    assert gradient.us < 0.6 * times("gradient", "relu(x + bias)").us
    return call.us, gradient.us


def _in_cpp() -> tuple:
    """µs of the op in C++ and of custom_op, in the record that has both."""
    record = recorded.MAKE_OP.with_part("call", name="C++")
    in_cpp, by_custom_op = (record.us("call", name=name) for name in ("C++", "torch.library"))
    saved = by_custom_op - in_cpp
    assert saved > by_custom_op - record.us("call", name="torch.library, define"), "more than define and impl save"
    assert in_cpp < by_custom_op / 2
    return ()


def _past_autograd() -> tuple:
    """By the stored run: µs through Autograd alone, and what a gradient adds, in Python and in C++."""
    times = re.findall(r"([\d.]+) through it, ([\d.]+) with gradient", printed(NOTEBOOK, "past-autograd", on="H200"))
    (python, trained), (cpp, trained_cpp) = (map(float, pair) for pair in times)
    assert cpp > python
    assert round((trained_cpp - cpp) / (trained - python), 2) in (0.24, 0.25, 0.26)
    return ()


def _long() -> tuple:
    labels = {"form": "functional", "implementation": "triton", "rows": 65536, "columns": 512, "dtype": "float32"}
    kernel = ADD_RELU.us("bandwidth", **labels)
    longest = max(recorded.MAKE_OP.rows(part)["us_p50"].max() for part in ("call", "gradient"))
    tens = kernel // 10 * 10
    assert longest < tens
    return (tens,)


def _end() -> tuple:
    return times("gradient", "torch.library").us, times("gradient", "triton").us


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said(
    "On an H200, compiled `relu(x + bias) * 2` takes {:.0f} µs for 65536 rows of 512 elements. Written with "
    "`add_relu`, it takes about twice as long: the op's result is written to memory and read again.",
    _wall,
)
said("On an H200, a call of PyTorch's `x + 1` takes {:.0f} µs.", _plus)
said(
    "Triton's launcher finds the kernel, in Python, at each call | {:.1f} |",
    lambda: (times("call", "launcher, output given").us,),
)
said("allocates the output | {:.1f} |", lambda: (_above("call", "launcher", "launcher, output given"),))
said("`custom_op` around it | {:.1f} |", lambda: (_above("call", "torch.library", "launcher"),))
said("in Python too | {:.1f} |", lambda: (_above("gradient", "torch.library", "torch.library"),))
said("Together they take {:.1f} µs, and PyTorch's two kernels {:.1f} µs.", _together)
said(
    "In place of `custom_op`, `define` and `impl` add only {:.1f} µs.",
    lambda: (_above("call", "torch.library, define", "launcher"),),
)
said(
    "C++ saves more: on an H100, a call without a gradient takes less than half as long as by `custom_op`.", _in_cpp
)
said(
    "A call of section 7's op with Triton takes {:.1f} µs, no more than PyTorch's `x + 1`, and {:.1f} µs with a "
    "gradient",
    _declaration,
)
said(
    "On the H200, our kernel runs for more than {:.0f} µs on 65536 rows of 512 elements, longer than any call recorded "
    "there.",
    _long,
)
said("{:.1f} µs by `custom_op` | {:.1f} µs by one declaration", _end)
claim(
    NOTEBOOK,
    "Passing through costs no less in C++ than in Python. But from *through it* to *with gradient*, C++ adds a quarter "
    "of Python's time.",
    _past_autograd,
)
