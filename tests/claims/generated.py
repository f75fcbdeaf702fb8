"""07, Read the generated Triton: what `python -m model.generated --save` recorded."""

from __future__ import annotations

from claims.claim import claim
from model.generated import facts
from model.generated.facts import a_number, kept, one, scalar
from model.gpu import machine
from model.gpu.machine import copy_limit

NOTEBOOK = "07"


def us(row) -> float:
    return row["us_p50"]


def _limit() -> tuple:
    return (copy_limit() / 1e3,)


def _fused() -> tuple:
    eager, fused = one("eager"), kept()
    first, *_ = (row for _, row in facts.rows("torch.compile").iterrows())
    assert abs(us(first) / us(fused) - 1) < 0.03, "torch.compile's own launch is not the kept candidate"
    return us(eager), us(fused), us(eager) / us(fused)


def _bytes_less() -> tuple:
    """How many times fewer bytes, and by how many percent eager takes longer than its bytes need."""
    eager, fused, needed, _ = _bytes_to_time()
    return eager / fused, 100 * (us(one("eager")) / needed - 1)


def _copy() -> tuple:
    assert us(kept()) < us(one("copy"))
    assert abs(us(kept()) / _bytes_to_time()[3] - 1) < 0.02
    return (us(one("copy")),)


def _bytes_to_time() -> tuple:
    eager, fused = facts.traffic(65536, 512)
    return eager / 1e6, fused / 1e6, eager / copy_limit() / 1e3, fused / copy_limit() / 1e3


def _kept() -> tuple:
    assert len(facts.rows("candidate", variant="literal")) == 2
    row = kept()
    return row["XBLOCK"], row["num_warps"]


def _apart() -> tuple:
    """The kept one's µs and the other's."""
    first, second = (one("candidate", variant="literal", kept=which) for which in (True, False))
    assert facts.spread_apart(first, second)
    assert us(first) < us(second)
    return us(first), us(second)


def _kept_small() -> tuple:
    row = kept(large=False)
    assert row["XBLOCK"] != kept()["XBLOCK"]
    times = facts.rows("candidate", large=False, variant="literal")["inductor_us"]
    assert times.max() < 1.01 * times.min()
    return row["XBLOCK"], row["num_warps"]


def _scalar() -> tuple:
    assert facts.widths(scalar()) == "4"
    assert not facts.spread_apart(scalar(), kept())
    return us(scalar()), us(kept())


def _not_the_width() -> tuple:
    """Narrow accesses with the kept XBLOCK are faster than wider ones with the other."""
    other = one("candidate", variant="literal", kept=False)
    assert facts.spread_apart(scalar(), other)
    assert us(scalar()) < us(other)
    return us(scalar()), us(other)


def _instructions() -> tuple:
    return a_number(scalar()), a_number(kept())


def _rows_open() -> tuple:
    assert facts.widths(kept("rows open")) == facts.widths(kept())
    assert not facts.spread_apart(kept("rows open"), kept())
    return us(kept("rows open")), us(kept())


def _both_open() -> tuple:
    columns, both = kept("columns open"), kept("both open")
    assert us(columns) < 1.01 * us(kept()) < us(both) / 1.05
    assert (facts.widths(columns), facts.widths(both)) == ("16, bias 4", "4")
    odd = one("candidate", variant="an odd size", XBLOCK=both["XBLOCK"])
    assert us(odd) > 0.98 * us(both)
    marked = [facts.body(variant) for variant in ("columns open", "both open", "an odd size")]
    assert [sum("evict_last" in line for line in lines) for lines in marked] == [3, 3, 1]  # x's and y's loads, too
    return us(columns), us(both), us(odd)


def _511() -> tuple:
    assert us(kept("511 columns")) < 1.01 * us(kept())
    return (us(kept("511 columns")),)


def _odd() -> tuple:
    assert facts.widths(kept("an odd size")) == "4"
    assert facts.spread_apart(kept("an odd size"), kept())
    return (us(kept("an odd size")),)


def _small() -> tuple:
    literal = kept(large=False)
    rows = one("candidate", large=False, variant="rows open", XBLOCK=literal["XBLOCK"])
    assert not facts.spread_apart(literal, rows)
    empty = next(row for _, row in machine.rows("launch").iterrows())
    assert us(empty) > us(literal) / 2
    return us(literal), us(rows), literal["bytes"] / copy_limit() / 1e3, us(empty)


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said("For 65536 × 512 this is {:.0f} and {:.0f} MB; at the copy's rate {:.0f} and {:.0f} µs.", _bytes_to_time)
said("Eager takes {:.0f} µs, the generated kernel {:.1f} µs, {:.1f} times less.", _fused)
said("The bytes are {:.0f} times less; eager's four kernels also take {:.0f} % longer than theirs need.", _bytes_less)
said("PyTorch's `copy_` of as many bytes as the generated kernel's takes {:.1f} µs.", _copy)
said("There are two candidates; the autotuner kept `XBLOCK` {:.0f} with {:.0f} warps.", _kept)
said("In our clock, by turns, it takes {:.1f} µs and the other {:.1f} µs, which is beyond the spread.", _apart)
said("it kept {:.0f} with {:.0f} warps, where its two times are less than a percent apart", _kept_small)
said("With accesses of 4 bytes it takes {:.1f} µs, with wide ones {:.1f} µs", _scalar)
said("A number takes {:.1f} instructions with narrow accesses and {:.1f} with wide ones.", _instructions)
said("with 4 bytes at a time it takes {:.1f} µs, and the other candidate with 8 takes {:.1f} µs", _not_the_width)
said("With rows open the kernel takes {:.1f} µs, with literal sizes {:.1f} µs", _rows_open)
said("With only the columns open it takes {:.1f} µs, with both open {:.1f} µs.", lambda: _both_open()[:2])
said(
    "It is not the remainder, nor `evict_last`: an odd size, with a cheap remainder and no such hint, takes {:.1f} µs "
    "with the same candidate, and {:.1f} µs with the one that was kept.",
    lambda: (*_both_open()[2:], *_odd()),
)
said("With 511 columns it takes {:.1f} µs", _511)
said(
    "At 2048 rows literal sizes take {:.1f} µs, open rows {:.1f} µs by the same candidate. The bytes alone would take "
    "{:.1f} µs, but a kernel with next to nothing to do takes {:.1f} µs by this clock: here the launch counts most.",
    _small,
)
