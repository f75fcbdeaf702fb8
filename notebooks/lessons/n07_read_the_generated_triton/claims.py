"""07, Read the generated Triton: what `python -m lessons.n07_read_the_generated_triton --save` recorded."""

from __future__ import annotations

from lessons.n07_read_the_generated_triton import arithmetic, recorded
from lessons.n07_read_the_generated_triton.recorded import GENERATED, a_number, candidates, kept, rows_of, scalar
from lessons.shared.claim import claim
from lessons.shared.records import GPU, apart, copy_us, yardstick

NOTEBOOK = "07"


def p50(row) -> float:
    return row["us_p50"]


def large(part: str, **labels):
    """A row of the large size."""
    return GENERATED.one(part, rows=rows_of(), **labels)


def _limit() -> tuple:
    return (yardstick(),)


def _fused() -> tuple:
    eager, fused = large("eager"), kept()
    first = GENERATED.one("torch.compile", variant="literal", rows=rows_of())
    assert abs(p50(first) / p50(fused) - 1) < 0.03, "torch.compile's own launch is not the kept candidate"
    return p50(eager), p50(fused), p50(eager) / p50(fused)


def _bytes_less() -> tuple:
    """How many times fewer bytes, and by how many percent eager takes longer than its bytes need."""
    eager, fused, needed, _ = _bytes_to_time()
    return eager / fused, 100 * (p50(large("eager")) / needed - 1)


def _copy() -> tuple:
    assert p50(kept()) < p50(large("copy"))
    assert abs(p50(kept()) / _bytes_to_time()[3] - 1) < 0.02
    return (p50(large("copy")),)


def _bytes_to_time() -> tuple:
    eager, fused = arithmetic.traffic(65536, 512)
    return eager / 1e6, fused / 1e6, copy_us(eager), copy_us(fused)


def _kept() -> tuple:
    assert len(candidates()) == 2
    row = kept()
    return row["XBLOCK"], row["num_warps"]


def _apart() -> tuple:
    """The kept one's µs and the other's."""
    first, second = (large("candidate", variant="literal", kept=which) for which in (True, False))
    assert apart(first, second)
    assert p50(first) < p50(second)
    return p50(first), p50(second)


def _kept_small() -> tuple:
    row = kept(large=False)
    assert row["XBLOCK"] != kept()["XBLOCK"]
    times = candidates(large=False)["inductor_us"]
    assert times.max() < 1.01 * times.min()
    return row["XBLOCK"], row["num_warps"]


def _scalar() -> tuple:
    assert recorded.widths(scalar()) == "4"
    assert not apart(scalar(), kept())
    return p50(scalar()), p50(kept())


def _not_the_width() -> tuple:
    """Narrow accesses with the kept XBLOCK are faster than wider ones with the other."""
    other = large("candidate", variant="literal", kept=False)
    assert apart(scalar(), other, least=1)
    assert p50(scalar()) < p50(other)
    return p50(scalar()), p50(other)


def _instructions() -> tuple:
    return a_number(scalar()), a_number(kept())


def _rows_open() -> tuple:
    assert recorded.widths(kept("rows open")) == recorded.widths(kept())
    assert not apart(kept("rows open"), kept())
    return p50(kept("rows open")), p50(kept())


def _both_open() -> tuple:
    columns, both = kept("columns open"), kept("both open")
    assert p50(columns) < 1.01 * p50(kept()) < p50(both) / 1.05
    assert (recorded.widths(columns), recorded.widths(both)) == ("16, bias 4", "4")
    odd = GENERATED.one("candidate", variant="an odd size", XBLOCK=both["XBLOCK"])
    assert p50(odd) > 0.98 * p50(both)
    marked = [recorded.body(variant) for variant in ("columns open", "both open", "an odd size")]
    assert [sum("evict_last" in line for line in lines) for lines in marked] == [3, 3, 1]  # x's and y's loads, too
    return p50(columns), p50(both), p50(odd)


def _511() -> tuple:
    assert p50(kept("511 columns")) < 1.01 * p50(kept())
    return (p50(kept("511 columns")),)


def _odd() -> tuple:
    assert recorded.widths(kept("an odd size")) == "4"
    assert apart(kept("an odd size"), kept())
    return (p50(kept("an odd size")),)


def _small() -> tuple:
    literal = kept(large=False)
    rows = GENERATED.one("candidate", rows=rows_of(large=False), variant="rows open", XBLOCK=literal["XBLOCK"])
    assert not apart(literal, rows)
    empty = GPU.one("launch")
    assert p50(empty) > p50(literal) / 2
    return p50(literal), p50(rows), copy_us(literal["bytes"]), p50(empty)


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
