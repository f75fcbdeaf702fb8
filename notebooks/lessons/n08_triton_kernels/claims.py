"""08, Triton kernels: what `python -m lessons.n08_triton_kernels --save` and the ops' benchmarks recorded."""

from __future__ import annotations

import inspect
import itertools
import re

from lessons.n08_triton_kernels import recorded
from lessons.n08_triton_kernels.experiment import DTYPES, SHAPES
from lessons.n08_triton_kernels.recorded import POINTWISE, bytes_us
from lessons.shared.claim import claim, printed
from lessons.shared.records import ADD_MUL_ACTIVATION, GPU, LANES, LEAST, Record, apart, gb_per_s, yardstick

NOTEBOOK = "08"
one = POINTWISE.one
HALF = "bfloat16"


def p50(row) -> float:
    return row["us_p50"]


def step(name: str, shape: str = "even", dtype: str = "float32"):
    return one("step", name=name, shape=shape, dtype=dtype)


def _relu(name: str, shape: str = "even"):
    return one("add_relu", name=name, shape=shape, dtype="float32")


def _even() -> tuple:
    rows = [_relu(name) for name in ("six lines", "torch.compile", "the op")]
    assert not any(apart(a, b) for a, b in itertools.combinations(rows, 2))
    assert p50(rows[0]) < 1.05 * bytes_us(tensors=2)
    return (p50(rows[0]),)


def _odd() -> tuple:
    """Each is faster than the one before, and the library's is as fast as at the even size."""
    six, theirs, ours = rows = [_relu(name, "odd") for name in ("six lines", "torch.compile", "the op")]
    assert apart(six, theirs)
    assert apart(theirs, ours)
    assert not apart(ours, _relu("the op"))
    return tuple(map(p50, rows))


def _copies() -> tuple:
    """Notebook 06's copy, a program for each tile of 2, 4, 8 and 16 elements a lane: the first slow, no difference
    between the next two, and the last slower than both."""
    rates = [gb_per_s(GPU.one("flight", block=block, programs=0)) for block in (256, 512, 1024, 2048)]
    assert LEAST * rates[0] < rates[3]
    assert LEAST * rates[3] < rates[2] < rates[1] < LEAST * rates[2]
    return tuple(rates)


def _slowest() -> tuple:
    """Percent beyond the fastest of the configs, on a GPU that has them on record; beyond the next by the spreads."""
    record = POINTWISE.with_part("block")
    assert record.head("GPU").startswith("NVIDIA H100")
    slow, *others = (row for _, row in record.rows("block").sort_values("us_p50", ascending=False).iterrows())
    assert (slow["block"], slow["warps"]) == (256, 4)
    assert slow["us_p20"] > others[0]["us_p80"]
    assert not any(apart(a, b) for a, b in itertools.combinations(others, 2))
    return (100 * (p50(slow) / p50(others[-1]) - 1),)


def _slow_here() -> tuple:
    """Percent of (256, 4) beyond the fastest, by the stored output of an H200; the others differ by less than 3 %."""
    output = printed(NOTEBOOK, "block", on="NVIDIA H200")
    lines = re.findall(r"^BLOCK +(\d+), (\d+) warp.*; here ([\d.]+) µs", output, re.M)
    times = {(int(block), int(warps)): float(us) for block, warps, us in lines}
    slow = times.pop((256, 4))
    assert slow > LEAST * max(times.values())
    assert max(times.values()) < LEAST * min(times.values())
    return (100 * (slow / min(times.values()) - 1),)


def _eighth() -> tuple:
    """An eighth of a second, for which do_bench times a function."""
    from triton.testing import do_bench

    parameters = inspect.signature(do_bench).parameters
    assert parameters["warmup"].default + parameters["rep"].default == 125
    return ()


def _wide() -> tuple:
    """64 bits make a difference in one case, where there are many more instructions; few at 512 columns."""
    pairs = {
        (shape, dtype): [step(name, shape, dtype) for name in ("16 bytes a lane", "64-bit places")]
        for shape in SHAPES for dtype in DTYPES
    }
    assert [case for case, (narrow, wide) in pairs.items() if apart(narrow, wide)] == [("odd", HALF)]
    for (shape, _), (narrow, wide) in pairs.items():
        assert (wide["instructions"] > 1.5 * narrow["instructions"]) == (shape == "odd")
    return ()


def _relus() -> tuple:
    rows = [one("relu", name=name) for name in ("maximum", "where")]
    assert not apart(*rows)
    values = {name: one("values", name=name)["values"][0] for name in ("maximum", "where", "eager")}
    assert values == {"maximum": "0.0", "where": "nan", "eager": "nan"}
    return tuple(map(p50, rows))


def _gelus(dtype: str = HALF) -> tuple:
    erf, fitted = (one("gelu", name=name, dtype=dtype) for name in ("gelu by erf", "gelu, fitted"))
    assert apart(erf, fitted) == (dtype == HALF)
    return p50(erf), p50(fitted)


def _issued(name: str, dtype: str) -> float:
    """µs to issue all instructions, of code without a branch."""
    row = one("gelu", name=name, dtype=dtype)
    assert row["branches"] == 0
    count = row["instructions"] * LANES * 4 / 1024
    return recorded.kind_us("all, issued", count)


def _copied() -> tuple:
    """µs of the bytes at the yardstick's rate, and of a copy of as many."""
    us, copied = bytes_us(tensors=2), Record("cuda_steps").one("copy", of="step")
    assert abs(copied["bytes"] / (2 * 65536 * 512 * 4) - 1) < 1e-4
    return us, copied["us_p50"]


def _quarters() -> tuple:
    us = _issued("gelu by erf", HALF)
    assert 0.9 < us / bytes_us(HALF) < 1
    assert _issued("gelu, fitted", HALF) < 0.7 * bytes_us(HALF)
    return (us,)


def _overlap() -> tuple:
    (issued,), both = _quarters(), bytes_us(HALF)
    took = _gelus()[0]
    assert LEAST * max(issued, both) < took < issued + both
    record = POINTWISE.with_part("same")
    assert record.head("GPU").startswith("NVIDIA H100")
    for name in ("multi_processor_count", "max_sm_mhz"):
        assert GPU.head("device", name) == Record(GPU.name, gpu=record.gpu).head("device", name)
    alone = record.us("same", name="gelu by erf", dtype=HALF)
    assert both < alone < took < 1.2 * alone
    return alone, took


def _hidden() -> tuple:
    _gelus("float32")
    assert 2 * _issued("gelu by erf", "float32") < bytes_us()
    return ()


def _row(part: str, shape: str, dtype: str, differ: bool) -> tuple:
    theirs, ours = (one(part, name=name, shape=shape, dtype=dtype) for name in ("torch.compile", "the op"))
    assert apart(theirs, ours) == differ
    return p50(theirs), p50(ours)


def _duels() -> tuple:
    """Duels of sigmoid in float32 at each size of the op's record: how many, and how many differ by more than 3 %. A
    size that is no multiple of 16 is small."""
    grid, differ = ADD_MUL_ACTIVATION.rows("grid", form="functional"), []
    for (rows, columns), cell in grid.groupby(["rows", "columns"]):
        assert rows * columns % 16 == 0 or rows * columns < 2**15
        ours, theirs = (cell[cell["implementation"] == name].iloc[0] for name in ("triton", "torch.compile"))
        differ.append(apart(ours, theirs))
    assert sum(differ) == 1
    return len(differ), 100 * (LEAST - 1)


def _sizes() -> tuple:
    """By at most how many per cent the rates of 200 MB and more differ from a copy's; per cent of it at 12.6 MB."""
    grid = ADD_MUL_ACTIVATION.rows("grid", form="functional")
    grid = grid[grid["implementation"].isin(["triton", "torch.compile"])]
    share = grid["bytes"] / grid["us_p50"] / 1e6 / yardstick()
    large, small = share[grid["bytes"] > 200e6], share[grid["bytes"].between(12.57e6, 12.6e6)]
    assert (large - 1).abs().max() < LEAST - 1
    assert small.max() < 1.04 * small.min()
    return 100 * (LEAST - 1), 100 * small.median()


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said(
    "On the H200, the six lines take {:.1f} µs. The kernel from `torch.compile` shows no difference.",
    _even,
)
said(
    "At the copy's rate, that of 1 GiB, the bytes alone take {:.1f} µs. (A copy of only these bytes took {:.1f} µs: "
    "notebook 10.)",
    _copied,
)
said('"No difference" means less than {:.0f} %.', lambda: (100 * (LEAST - 1),))
said("reached {:.0f} GB/s with two elements a lane, and {:.0f} with four.", lambda: _copies()[:2])
said(
    "Above, it takes {:.0f} % longer than the fastest, and on the H100 {:.1f} % longer. The other five show no "
    "difference.",
    lambda: _slow_here() + _slowest(),
)
said("times each for about an eighth of a second.", _eighth)
said(
    "At the odd size on the H200, the six lines take {:.1f} µs and the kernel from `torch.compile` takes {:.1f} µs. "
    "The library's kernel takes {:.1f} µs, no more than at the even size.",
    _odd,
)
said("On the H200, 64 bits cost time only at the odd size in bfloat16.", _wide)
said("On the H200 the two forms take {:.1f} µs and {:.1f} µs: no difference.", _relus)
said("Its bytes take {:.1f} µs.", lambda: (bytes_us(HALF),))
said("In float32 the limit by bytes is more than twice any other, so both forms take the same time.", _hidden)
said("In bfloat16 `erf` takes {:.1f} µs and the polynomial {:.1f} µs.", _gelus)
said("at the highest clock, `erf`'s instructions take {:.1f} µs.", _quarters)
said(
    "Without the bytes, the kernel took {:.1f} µs on an H100, which has as many SMs and the same highest clock. So "
    "most of the {:.1f} µs are instructions,",
    _overlap,
)
said("| sigmoid, 65536 × 512, float32 | {:.1f} | {:.1f} |", lambda: _row("step", "even", "float32", False))
said("| sigmoid, 65535 × 511, float32 | {:.1f} | {:.1f} |", lambda: _row("step", "odd", "float32", True))
said("| sigmoid, 65535 × 511, bfloat16 | {:.1f} | {:.1f} |", lambda: _row("step", "odd", HALF, True))
said("| gelu, 65536 × 512, bfloat16 | {:.1f} | {:.1f} |", lambda: _row("gelu", "even", HALF, True))
said(
    "None of the sizes is large and no multiple of 16. The library and the compiler differ by more than {:.0f} % at "
    "only one.",
    lambda: _duels()[1:],
)
said("The library's benchmark times the sigmoid at {} sizes:", lambda: _duels()[:1])
said(
    "From 200 MB on, the library and the compiler are within {:.0f} % of the copy's rate. At 12.6 MB they reach {:.0f} "
    "% of it,",
    _sizes,
)
