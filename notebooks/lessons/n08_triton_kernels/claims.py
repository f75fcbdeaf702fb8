"""08: the prose quotes what its cells print; what it compares is computed from the room's and the op's records."""

from __future__ import annotations

import itertools
from functools import partial

from lessons.n08_triton_kernels.experiment import DTYPES, RELUS, SHAPES
from lessons.n08_triton_kernels.recorded import POINTWISE, bytes_us
from lessons.shared.claim import claim, quotes
from lessons.shared.records import ADD_MUL_ACTIVATION, LEAST, apart, yardstick

NOTEBOOK = "08"
quotes(NOTEBOOK)
one = POINTWISE.one


def step(name: str, shape: str, dtype: str):
    return one("step", name=name, shape=shape, dtype=dtype)


def _relu(name: str, shape: str = "even"):
    return one("add_relu", name=name, shape=shape, dtype="float32")


def _even() -> tuple:
    """Percent below which times are called the same; the bytes' time is within 5 % of the six lines'."""
    rows = [_relu(name) for name in ("six lines", "torch.compile", "the op")]
    assert not any(apart(a, b) for a, b in itertools.combinations(rows, 2))
    assert rows[0]["us_p50"] < 1.05 * bytes_us(tensors=2)
    return (100 * (LEAST - 1),)


def _odd() -> tuple:
    """Each is faster than the one before, and the library's is as fast as at the even size."""
    six, theirs, ours = (_relu(name, "odd") for name in ("six lines", "torch.compile", "the op"))
    assert apart(six, theirs)
    assert apart(theirs, ours)
    assert not apart(ours, _relu("the op"))
    return (ours["us_p50"],)


def _wide() -> tuple:
    """64 bits make a difference in one case; they add many instructions at 511 columns, and few at 512."""
    pairs = {
        (shape, dtype): [step(name, shape, dtype) for name in ("16 bytes a lane", "64-bit places")]
        for shape in SHAPES for dtype in DTYPES
    }
    assert [case for case, (narrow, wide) in pairs.items() if apart(narrow, wide)] == [("odd", "bfloat16")]
    for (shape, _), (narrow, wide) in pairs.items():
        added = wide["instructions"] / narrow["instructions"]
        assert added > 1.5 if shape == "odd" else added < 1.1
    return ()


def _relus() -> tuple:
    assert not apart(*(one("relu", name=name) for name in RELUS))
    return ()


def _race() -> tuple:
    rows = [step(name, "even", "float32") for name in ("two ways", "the op", "torch.compile")]
    assert not any(apart(a, b) for a, b in itertools.combinations(rows, 2))
    assert all(1 / LEAST < row["us_p50"] / bytes_us() < LEAST for row in rows)
    return ()


def _verdict() -> tuple:
    """Where torch.compile's kernel and the library's differ, and which of the two is faster."""
    slower = []
    for part, shape in (("step", "even"), ("step", "odd"), ("gelu", "even")):
        for dtype in DTYPES:
            theirs, ours = (one(part, name=name, shape=shape, dtype=dtype) for name in ("torch.compile", "the op"))
            if apart(theirs, ours):
                assert ours["us_p50"] < theirs["us_p50"]
                slower.append((part, shape, dtype))
    assert slower == [("step", "odd", "float32"), ("step", "odd", "bfloat16"), ("gelu", "even", "bfloat16")]
    return ()


def _grid(*implementations: str):
    grid = ADD_MUL_ACTIVATION.rows("grid", form="functional")
    return grid[grid["implementation"].isin(implementations)]


def _sizes() -> tuple:
    """By at most how many per cent the rates of 200 MB and more differ from a copy's; smaller ones are below it."""
    grid = _grid("triton", "torch.compile")
    share = grid["bytes"] / grid["us_p50"] / 1e6 / yardstick()
    assert (share[grid["bytes"] > 200e6] - 1).abs().max() < LEAST - 1
    assert share[grid["bytes"] < 190e6].max() < 1 / LEAST
    return (100 * (LEAST - 1),)


def _duels() -> tuple:
    """The library and the compiler differ at one size; a size that is no multiple of 16 is small."""
    differ = []
    for (rows, columns), cell in _grid("triton", "torch.compile").groupby(["rows", "columns"]):
        assert rows * columns % 16 == 0 or rows * columns < 2**15
        differ.append(apart(*(row for _, row in cell.iterrows())))
    assert sum(differ) == 1
    return ()


said = partial(claim, NOTEBOOK)
said(
    "The kernel from `torch.compile` shows no difference: less than {:.0f} %, here and below. At the copy's rate "
    "(notebook 06) their bytes alone take almost as long,", _even,
)
said("The library's kernel takes {:.1f} µs, no more than at the even size.", _odd)
said("Element {:,}", lambda: (2**31,))
said("`tl.program_id` is a signed integer of 32 bits,")
said("Beyond {:,} it wraps around to a negative number,", lambda: (2**31 - 1,))
said(
    "On the H200 one of the four cases is slower with 64 bits: the odd size in bfloat16. At the odd size they add more "
    "than half as many instructions again, for the remainder by 511; at the even size, where bit operations give the "
    "remainder, hardly any.", _wide,
)
said("On the H200 the two forms show no difference in time.", _relus)
said(
    "In the race the record has no difference between your kernel, the library's and the compiler's: all three take as "
    "long as their bytes.", _race,
)
said(
    "In three of six lines they show no difference: the bytes decide. At the odd size the compiler's kernel pays for "
    "its mask, above all in bfloat16,", _verdict,
)
said(
    "From 200 MB on, the library and the compiler are within {:.0f} % of the copy's rate. Smaller tensors stay below "
    "it,", _sizes,
)
said(
    "At all sizes but one the library and the compiler show no difference; no size here is both large and odd.", _duels,
)
