"""19, The whole model in one kernel: its prose quotes what its cells print."""

from __future__ import annotations

from lessons.n19_whole_model_in_one_kernel.mini_kernel import shape
from lessons.shared.claim import claim, quotes
from lessons.shared.records import Record

quotes("19")

RECORD = Record("lecture_19")
MODELS = (3, 4), (8, 16), (16, 16), (26, 16)
SHAPES = {f"{tables} tables of width {width}": shape(tables, width) for tables, width in MODELS}


def taken(part: str, name: str, size: object) -> float:
    return RECORD.us(part, name=name, size=size)


def stricter() -> tuple:
    assert taken("race", "max-autotune", 2048) < taken("race", "torch.compile", 2048) / 2
    return ()


def careful() -> tuple:
    *_, many = SHAPES
    times = RECORD.rows("budget", size=many).set_index("name")["us_p50"]
    assert times.idxmin() == "a row a thread"
    assert SHAPES[many].why_not()
    return (max(each.numbers for each in SHAPES.values() if not each.why_not()),)


def shrinks() -> tuple:
    peer, ours = "torch.compile, combo_kernels", "a row a thread"
    leads = [taken("budget", peer, size) / taken("budget", ours, size) for size in SHAPES]
    assert leads == sorted(leads, reverse=True)
    assert leads[-1] > 1.03
    return ()


def more_products() -> tuple:
    *_, sixteen, many = SHAPES
    assert 2 < SHAPES[many].products / SHAPES[sixteen].products < 3
    assert 1.8 < taken("budget", "a row a thread", many) / taken("budget", "a row a thread", sixteen) < 2.2
    return ()


def mostly_fixed() -> tuple:
    assert taken("race", "eager", 65536) < 3 * taken("race", "eager", 2048)
    return (65536 // 2048,)


claim("19", "`max-autotune`, which took less than half of plain `torch.compile`'s time in section 3.", stricter)
claim("19", "So the budget is careful: its {} numbers are the most that were measured without a spill.", careful)
claim("19", "The lead over `combo_kernels` shrinks with each step.", shrinks)
claim("19", "has more than twice the products of the one for 16, and takes about twice its time.", more_products)
claim("19", "{} times as many rows take it less than three times as long.", mostly_fixed)
