"""07, Read the generated Triton: what `python -m lessons.n07_read_the_generated_triton --save` recorded, what the
notebook's stored machine code shows, and the copy of 06's record."""

from __future__ import annotations

import re
from functools import partial

from lessons.n07_read_the_generated_triton import arithmetic, recorded
from lessons.n07_read_the_generated_triton.recorded import GENERATED, configs, kept, scalar, way
from lessons.shared.claim import claim, printed
from lessons.shared.records import GPU, LANES, LEAST, Record, apart, copy_us, gb_per_s, memory_tb_per_s, sms, yardstick

EVEN, ODD = (65536, 512), (65535, 511)
say = partial(claim, "07")
_printed = partial(printed, "07")


def p50(row) -> float:
    return row["us_p50"]


def _fused() -> tuple:
    fused, first = way("torch.compile"), kept()
    assert abs(p50(fused) / p50(first) - 1) < 0.03, "torch.compile's own launch is not the kept config"
    eager_bytes, fused_bytes = arithmetic.traffic(*EVEN)
    assert apart(way("eager"), fused)
    assert round(eager_bytes / fused_bytes, 2) == 3
    return p50(way("eager")), p50(fused)


def _of_its_bytes() -> tuple:
    """Percent that eager takes longer."""
    eager = way("eager")
    return (100 * (p50(eager) / copy_us(eager["bytes"]) - 1),)


def _slow_operator() -> tuple:
    """GB/s of the bias's sum, and of the slowest of the others, by the stored output; on the H100 it is slow, too."""
    rows = {row["name"]: row for _, row in GENERATED.with_part("operators").rows("operators").iterrows()}
    above = _times("cell-15")
    here = {name: row["bytes"] / above[name] / 1e3 for name, row in rows.items()}
    for rates in (here, {name: gb_per_s(row) for name, row in rows.items()}):
        assert rates["x + bias"] < 0.9 * min(rate for name, rate in rates.items() if name != "x + bias")
    return here.pop("x + bias"), min(here.values())


def _times(cell_id: str) -> dict[str, float]:
    """What `by_turns` printed there, on an H200: the median µs by name."""
    lines = re.findall(r"^(.+): ([\d.]+) µs \(", _printed(cell_id, on="NVIDIA H200"), re.M)
    return {name: float(us) for name, us in lines}


def _copy() -> tuple:
    assert apart(way("torch.compile"), way("copy"))
    assert p50(way("torch.compile")) < p50(way("copy"))
    bytes_us = copy_us(way("torch.compile")["bytes"])
    assert p50(way("torch.compile")) < bytes_us, "it does not beat the yardstick"
    return bytes_us, p50(way("copy"))


def _mixed(rows: int, columns: int) -> float:
    return arithmetic.mixed_us(4 * (2 * rows * columns + columns), 4 * rows * columns)


def _reads() -> tuple:
    """Reads alone, and the kernel's bytes at two rates; where the mix itself is recorded, reads are faster than a copy,
    and the kernel's mix lies between."""
    assert memory_tb_per_s() > yardstick()
    if "mix" in set(GENERATED.table()["part"]):
        reads, kernel, copy = (p50(GENERATED.one("mix", reads=r, writes=w)) for r, w in ((1, 0), (2, 1), (1, 1)))
        assert reads < kernel < copy
    return (memory_tb_per_s(),)


def _mix() -> tuple:
    """Percent that PyTorch's kernel of two reads and a write gains on one of a read and a write."""
    record = GENERATED.with_part("mix")
    kernel, copy = (record.us("mix", reads=reads, writes=1) for reads in (2, 1))
    gain = copy / kernel - 1
    assert 0 < gain < LEAST - 1
    assert record.us("mix", reads=0, writes=1) == record.rows("mix")["us_p50"].min()
    return (100 * gain,)


def _kept() -> tuple:
    assert sorted(zip(configs()["XBLOCK"], configs()["num_warps"], strict=True)) == [(512, 8), (1024, 4)]
    return kept()["XBLOCK"], kept()["num_warps"]


def _apart() -> tuple:
    """The kept one's µs and the other's."""
    first, second = (_of_literal(kept=which) for which in (True, False))
    assert apart(first, second)
    assert p50(first) < p50(second)
    return p50(first), p50(second)


def _of_literal(**labels):
    return GENERATED.one("candidate", variant="literal", rows=recorded.rows_of(), **labels)


def _kept_small() -> tuple:
    """At 2048 rows the other one, which is the faster one there."""
    assert kept(large=False)["XBLOCK"] != kept()["XBLOCK"]
    other = configs(large=False)
    assert apart(kept(large=False), other[~other["kept"].astype(bool)].iloc[0])
    return ()


def _in_flight() -> tuple:
    """KB an SM with two and with four elements a lane: by the stored table one number each, whatever the warps."""
    rows = re.findall(r"^ *(\d+) +(\d+) +(\d+) +(\d+)$", _printed("sweep"), flags=re.M)
    by_lane = {}
    for block, warps, lane, shown in (map(int, row) for row in rows):
        assert lane == block // (LANES * warps)
        assert shown == round(arithmetic.in_flight(block, warps, {2: 18, 4: 22, 8: 32}[lane]))
        by_lane.setdefault(lane, set()).add(shown)
    assert [len(values) for values in by_lane.values()] == [1, 1, 1]
    return *by_lane[2], *by_lane[4]


def _law() -> tuple:
    """KB that an SM must have asked for at the latency of an idle memory, if two of three bytes are reads."""
    latency = GPU.rows("latency")
    ns = latency.loc[latency["size"].idxmax()]["ns_p50"]
    return (2 / 3 * yardstick() * 1e3 * ns / sms() / 1024,)


def _of_copy(lane: int) -> tuple:
    """µs of 06's copy: a program a block, and 16 programs an SM in a loop."""
    alone, loop = (
        p50(GPU.one("flight", block=lane * 4 * LANES, programs=programs, threads=4 * LANES)) for programs in (0, 16)
    )
    assert loop < alone / 1.1 if lane == 2 else loop > alone
    return alone, loop


def _configs_alike() -> tuple:
    """Percent from the fastest config of the sweep to the slowest, on another GPU than the H200."""
    record = GENERATED.with_part("sweep")
    assert record.gpu != GENERATED.gpu
    us = record.rows("sweep", name="fused")["us_p50"]
    return (100 * (max(us) / min(us) - 1),)


def _two_a_lane() -> tuple:
    """Percent that two elements a lane take longer than four with as many warps, at most, by the stored output.
    With most warps, and so fewest programs, they take longest."""
    times = _times("sweep")
    two, four = ([times[f"({lane * LANES * warps}, {warps})"] for warps in (4, 8, 16)] for lane in (2, 4))
    assert two[0] < two[1] < two[2]
    longer = [100 * (slow / fast - 1) for slow, fast in zip(two, four, strict=True)]
    assert min(longer) > 1
    assert longer == sorted(longer)
    return (max(longer),)


def _more_warps() -> tuple:
    times = _times("sweep")
    for lane, least in ((2, 4), (4, 4), (8, 2)):
        rows = [times[f"({lane * LANES * warps}, {warps})"] for warps in (least, 2 * least, 4 * least)]
        assert rows == sorted(rows)
    return ()


def _list() -> tuple:
    assert sorted(configs()["XBLOCK"] / configs()["num_warps"] / LANES) == [2, 8]
    return ()


def _machine_code() -> tuple:
    """The bias has two loads in PTX, both of %rd5, and one in SASS, .EL."""
    text = _printed("machine-code")
    ptx, _, code = text.partition("SASS")
    assert len(re.findall(r"evict_last.*\[ %rd5 \+ 0 \]", ptx)) == 2
    assert len(re.findall(r"LDG\.E\.EL", code)) == 1
    assert len(re.findall(r"LDG\.E\.128", code)) == 4
    return ()


def _scalar() -> tuple:
    assert recorded.widths(scalar()) == "4"
    assert not apart(scalar(), kept())
    return p50(scalar()), p50(kept())


def _not_the_width() -> tuple:
    """Narrow accesses with the kept config are faster than wider ones with the other."""
    assert apart(scalar(), _of_literal(kept=False), least=1)
    assert p50(scalar()) < p50(_of_literal(kept=False))
    return ()


def _alone() -> tuple:
    """Percent: the literal kernel beside one with a mask, with a division, with narrow accesses."""
    assert [recorded.causes(name)[:2] for name in ("rows open", "columns open")] == [(True, "512"), (False, "ks0")]
    for row in (kept("rows open"), kept("columns open"), scalar()):
        assert abs(p50(row) / p50(kept()) - 1) < 0.01
        assert not apart(row, kept())
    return (1,)


def _together() -> tuple:
    both = kept("both open")
    assert recorded.widths(both) == "4"
    assert recorded.causes("both open")[0]
    assert apart(both, kept())
    return (p50(both),)


def _odd() -> tuple:
    """(1024, 4) at the odd size, and the other, which is kept."""
    chosen = kept("an odd size")
    assert (chosen["XBLOCK"], chosen["num_warps"]) == (512, 8)
    other = GENERATED.one("candidate", variant="an odd size", XBLOCK=1024)
    assert recorded.widths(other) == recorded.widths(chosen) == "4"
    return p50(other), p50(chosen)


def _loads() -> tuple:
    """Loads before the first exponential, of all, at an odd size; all of them in the other two kernels."""
    lines = re.findall(r"^(.+): (\d+) of (\d+) loads", _printed("order"), re.M)
    counts = {name: (int(before), int(loads)) for name, before, loads in lines}
    assert all(counts[name][0] == counts[name][1] for name in ("literal", "narrow"))
    for name, variant in {"literal": "literal", "an odd size": "an odd size"}.items():  # the recorded machine code
        order = re.search(rf"^{name}: .*\n(\S+)$", _printed("order"), re.M)[1]
        assert len(order) == GENERATED.one("candidate", variant=variant, XBLOCK=1024, rows=recorded.rows_of(variant))[
            "instructions"
        ]
    return counts["an odd size"]


def _instructions() -> tuple:
    """With dynamic columns more an element than at an odd size, by the same config."""
    odd = GENERATED.one("candidate", variant="an odd size", XBLOCK=1024)
    columns = GENERATED.one("candidate", variant="columns open", rows=recorded.rows_of("columns open"), XBLOCK=1024)
    assert recorded.an_element(columns) > recorded.an_element(odd)
    assert recorded.an_element(kept("columns open")) > recorded.an_element(odd)
    return ()


def _by_hand(name: str) -> tuple:
    """µs at the even and at the odd size, of one record and by turns."""
    return tuple(p50(Record("pointwise").one("step", name=name, shape=s, dtype="float32")) for s in ("even", "odd"))


def _near() -> tuple:
    share = p50(kept()) / _mixed(*EVEN) - 1
    assert 0 < share < 0.02
    return ()


def _worth() -> tuple:
    hand, generated = _by_hand("two ways")[1], _by_hand("torch.compile")[1]
    return (100 * (generated / hand - 1),)


say(
    "On the H200 eager takes {:.0f} µs, {:.0f} % longer than its bytes would at the copy's rate. The generated kernel "
    "moves a third of the bytes, and takes {:.1f} µs.",
    lambda: (_fused()[0], *_of_its_bytes(), _fused()[1]),
)
say(
    "Eager's slow kernel, on the H200 and the H100, is `x + bias`. In the stored run on an H200, it moves {:,.0f} "
    "GB/s and the others {:,.0f} or more.",
    _slow_operator,
)
say(
    "At the copy's rate its bytes take {:.1f} µs. A copy of as many, timed beside it, takes {:.1f} µs. The kernel "
    "beats both,",
    _copy,
)
say("On the H200, reads alone run at {:.1f} TB/s.", _reads)
say("At these two rates the kernel's bytes take {:.1f} µs.", lambda: (_mixed(*EVEN),))
say("on the H100 writes alone are fastest, and our kernel's mix gains only {:.1f} % over a copy.", _mix)
say("On the H200 the autotuner kept `({:.0f}, {:.0f})`.", _kept)
say("Measured by turns, it takes {:.1f} µs and the other {:.1f} µs, a difference beyond the spread.", _apart)
say("At 2048 rows the autotuner kept the other one.", _kept_small)
say("So only the elements per lane change the bytes in flight: {:.0f} KB with two, {:.0f} KB with four", _in_flight)
say("At the latency of an idle memory, the law asks for only {:.1f} KB of reads on an SM.", _law)
for number in (2, 4):
    say(f"| {number} | {{:.1f}} | {{:.1f}} |", partial(_of_copy, number))
say("In the stored run, two elements per lane take up to {:.0f} % longer than four with as many warps.", _two_a_lane)
say("of three configs with as many elements per lane, more warps never take less.", _more_warps)
say("on the H100 all configs lie within {:.0f} %.", _configs_alike)
say("Inductor's list has none with four elements per lane.", _list)
say("But SASS loads the bias only once.", _machine_code)
say("takes {:.1f} µs with narrow accesses and {:.1f} µs with wide ones: no difference.", _scalar)
say("So in section 3 the width did not decide either.", _not_the_width)
say("all are within {} % of the literal kernel.", _alone)
say("With both sizes dynamic the kernel takes {:.1f} µs.", _together)
say("At the odd size `(1024, 4)` takes {:.1f} µs, so the autotuner keeps `(512, 8)` at {:.1f} µs.", _odd)
say("At the odd size only {} of {} loads come before it", _loads)
say("The number of instructions is not: dynamic columns take more, and cost nothing.", _instructions)
say("| eager | {:.0f} | – |", lambda: (p50(way("eager")),))
say("| generated, sizes known (notebook 08) | {:.1f} | {:.1f} |", partial(_by_hand, "torch.compile"))
say("(notebook 08) | {:.1f} | {:.1f} |", partial(_by_hand, "two ways"))
say("at the two rates of section 2 | {:.1f} | {:.1f} |", lambda: (_mixed(*EVEN), _mixed(*ODD)))
say("At the even size the generated kernel takes at most 2 % longer than its bytes", _near)
say("That is worth {:.0f} % at the odd size.", _worth)
