"""07: its prose quotes what its cells print; and what it compares, or takes from another record."""

from __future__ import annotations

import re

from lessons.n07_read_the_generated_triton.layer_variants import VARIANTS
from lessons.n07_read_the_generated_triton.recorded import an_element, causes, kept, other, scalar, way, widths
from lessons.shared.claim import claim, printed, quotes
from lessons.shared.records import Record, apart

NOTEBOOK = "07"
H100, STEPS = Record("generated", gpu="h100-80gb-hbm3"), Record("pointwise")
quotes(NOTEBOOK)


def p50(row) -> float:
    return row["us_p50"]


def _configs() -> tuple:
    """XBLOCK and warps: those of each variant."""
    pairs = {tuple(sorted((row["XBLOCK"], row["num_warps"]) for row in (kept(v), other(v)))) for v in VARIANTS}
    ((second, first),) = pairs
    return *first, *second


def _largest() -> tuple:
    """Inductor's largest XBLOCK."""
    from torch._inductor.runtime.hints import TRITON_MAX_BLOCK

    assert 65536 % TRITON_MAX_BLOCK["X"] == 0
    return (TRITON_MAX_BLOCK["X"],)


def _fused() -> tuple:
    assert apart(way("eager"), way("torch.compile"))
    assert not apart(way("torch.compile"), kept()), "torch.compile's own launch is not the kept config"
    return p50(way("torch.compile")), p50(way("eager"))


def _bias() -> tuple:
    """It has two loads in PTX, both of %rd5, and one in SASS, .EL."""
    ptx, _, code = printed(NOTEBOOK, "machine-code").partition("SASS")
    assert len(re.findall(r"evict_last.*\[ %rd5 \+ 0 \]", ptx)) == 2
    assert len(re.findall(r"LDG\.E\.EL", code)) == 1
    assert len(re.findall(r"LDG\.E\.128", code)) == 4
    return ()


def _scalar() -> tuple:
    assert widths(scalar()) == "4"
    assert not apart(scalar(), kept())
    return p50(scalar()), p50(kept())


def _alone() -> tuple:
    """Percent: the literal kernel beside one with a mask, with a division, with narrow accesses."""
    assert [causes(name) for name in ("rows open", "columns open")] == [(True, "512"), (False, "ks0")]
    for row in (kept("rows open"), kept("columns open"), scalar()):
        assert abs(p50(row) / p50(kept()) - 1) < 0.01
    return (1,)


def _division() -> tuple:
    """µs of the config that was not kept, with a division and in the literal kernel."""
    divided, literal = other("columns open"), other("literal")
    assert apart(divided, literal)
    return p50(divided), p50(literal)


def _together() -> tuple:
    for name in ("both open", "an odd size"):
        assert widths(kept(name)) == widths(other(name)) == "4"
        assert causes(name)[0]
        assert apart(kept(name), kept())
    return ()


def _odd() -> tuple:
    first, second = other("an odd size"), kept("an odd size")
    assert apart(first, second)
    return p50(first), p50(second)


def _loads() -> tuple:
    """Loads before the first exponential, of all, at an odd size; all of them in the other two kernels."""
    lines = re.findall(r"^(.+): (\d+) of (\d+) loads", printed(NOTEBOOK, "order"), re.M)
    counts = {name: (int(before), int(loads)) for name, before, loads in lines}
    assert counts["literal"][0] == counts["literal"][1]
    assert counts["narrow"][0] == counts["narrow"][1]
    return counts["an odd size"]


def _little() -> tuple:
    """µs in the config (512, 8), at the odd size and of the literal kernel: less than 3 % apart."""
    pair = kept("an odd size"), other("literal")
    assert {(row["XBLOCK"], row["num_warps"]) for row in pair} == {(512, 8)}
    odd, literal = map(p50, pair)
    assert odd / literal < 1.03
    return odd, literal


def _instructions() -> tuple:
    """With dynamic columns more an element than at an odd size, by either config: test_lesson.py has those that run."""
    assert an_element(kept("columns open")) > max(an_element(row("an odd size")) for row in (kept, other))
    assert not apart(kept("columns open"), kept())
    return ()


def _kept_there() -> tuple:
    """The config of the literal kernel on an H100, another than on the H200."""
    there = kept("literal", H100)
    assert there["XBLOCK"] != kept()["XBLOCK"]
    return there["XBLOCK"], there["num_warps"]


def _on_an_h100() -> tuple:
    """Percent that the odd size costs here and there, by one config; the H100 copies as many bytes in more time."""
    assert H100.us("copy", rows=65536) > p50(way("copy"))
    here = other("an odd size"), kept()
    there = other("an odd size", H100), other("literal", H100)
    assert {(row["XBLOCK"], row["num_warps"]) for row in (*here, *there)} == {(1024, 4)}
    assert all(apart(*pair) for pair in (here, there))
    return tuple(100 * (p50(odd) / p50(literal) - 1) for odd, literal in (here, there))


def step(name: str, shape: str, dtype: str = "float32") -> float:
    return STEPS.us("step", name=name, shape=shape, dtype=dtype)


def _steps(name: str) -> tuple:
    """µs at the even and at the odd size, and there in bfloat16: of one record, by turns."""
    return step(name, "even"), step(name, "odd"), step(name, "odd", "bfloat16")


def _generated() -> tuple:
    """As torch.compile's kernel is in this notebook's record, so that eager and the copy may stand in one table."""
    assert abs(step("torch.compile", "even") / p50(way("torch.compile")) - 1) < 0.01
    return _steps("torch.compile")


def _copy() -> tuple:
    assert apart(way("torch.compile"), way("copy"))
    assert p50(way("torch.compile")) < p50(way("copy"))
    return (p50(way("copy")),)


def _branch() -> tuple:
    """Percent that the generated kernel takes longer at the odd size."""
    pairs = zip(_steps("torch.compile")[1:], _steps("the op")[1:], strict=True)
    return tuple(100 * (generated / hand - 1) for generated, hand in pairs)


SENTENCES = {
    "Inductor has two pairs of `XBLOCK` and warps for this kernel, `({:.0f}, {:.0f})` and `({:.0f}, {:.0f})`": _configs,
    "because Inductor's largest `XBLOCK`, {}, divides `xnumel`": _largest,
    "because 65,536 rows of any length have a multiple of {} elements.": _largest,
    "It takes {:.1f} µs, and eager {:.0f}.": _fused,
    "But SASS loads the bias only once.": _bias,
    "takes {:.1f} µs with narrow accesses and {:.1f} µs with wide ones: no difference.": _scalar,
    "with the config that was kept, all are within {} % of the literal kernel.": _alone,
    "the kernel with dynamic columns takes {:.1f} µs, and the literal one {:.1f}.": _division,
    "On an H100 the autotuner kept `({:.0f}, {:.0f})` for the literal kernel": _kept_there,
    "A mask and narrow accesses together do cost time.": _together,
    "At the odd size `(1024, 4)` takes {:.1f} µs, so the autotuner keeps `(512, 8)` at {:.1f} µs.": _odd,
    "At the odd size only {} of {} loads come before it.": _loads,
    "The number of instructions is not the reason: with dynamic columns more of them run, and cost nothing.":
    _instructions,
    "There the odd size costs little: {:.1f} µs in place of {:.1f}.": _little,
    "With `(1024, 4)` the odd size costs {:.0f} % on the H200, and {:.0f} % on the H100.": _on_an_h100,
    "| eager | {:.0f} | – | – |": lambda: (p50(way("eager")),),
    "| generated, sizes known | {:.1f} | {:.1f} | {:.1f} |": _generated,
    "(notebook 08) | {:.1f} | {:.1f} | {:.1f} |": lambda: _steps("the op"),
    "| a copy of as many bytes | {:.1f} | – | – |": _copy,
    "takes {:.0f} % longer in float32 and {:.0f} % in bfloat16.": _branch,
}
for sentence, values in SENTENCES.items():
    claim(NOTEBOOK, sentence, values)
