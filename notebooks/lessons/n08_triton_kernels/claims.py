"""08: the prose quotes what its cells print; what it compares is computed from the room's and the op's records."""

from __future__ import annotations

import itertools
from functools import partial

from lessons.n08_triton_kernels.experiment import DTYPES, RELUS, SHAPES
from lessons.n08_triton_kernels.recorded import POINTWISE, bytes_us
from lessons.shared.claim import claim, quotes
from lessons.shared.records import ADD_MUL_ACTIVATION, LEAST, Record, apart, copy_us, yardstick

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
    """64 bits make a difference in one case; most of what they add at 511 columns they do not add at 512."""
    pairs = {
        (shape, dtype): [step(name, shape, dtype) for name in ("16 bytes a lane", "64-bit places")]
        for shape in SHAPES for dtype in DTYPES
    }
    assert [case for case, (narrow, wide) in pairs.items() if apart(narrow, wide)] == [("odd", "bfloat16")]
    added = {case: wide["instructions"] - narrow["instructions"] for case, (narrow, wide) in pairs.items()}
    assert all(added["even", dtype] < added["odd", dtype] / 2 for dtype in DTYPES)
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


def _limits() -> tuple:
    """What takes as long as its bytes: the library's sigmoid always, the compiler's at the even size, its gelu not."""
    for dtype in DTYPES:
        for shape in SHAPES:
            assert _of_bytes(step("the op", shape, dtype)) < LEAST
        assert _of_bytes(step("torch.compile", "even", dtype)) < LEAST < _of_bytes(step("torch.compile", "odd", dtype))
    assert _of_bytes(one("gelu", name="torch.compile", shape="even", dtype="bfloat16")) > LEAST
    return ()


def _of_bytes(row) -> float:
    return row["us_p50"] / copy_us(row["bytes"])


def _apart_in_07() -> tuple:
    """07's (1024, 4): with a mask, and with narrow accesses, it takes as long as with neither; with both it is slower,
    and the compiler keeps its other config."""
    of = partial(Record("generated").one, "candidate", XBLOCK=1024)
    plain, masked = of(variant="literal", rows=65536), of(variant="rows open", rows=65536)
    narrow = Record("generated").one("scalar", rows=65536, XBLOCK=1024)
    both = of(variant="an odd size", rows=65535)
    assert not apart(plain, masked)
    assert not apart(plain, narrow)
    assert apart(plain, both)
    assert not both["kept"]
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
said("(The compiler may choose another `BLOCK`, and at this size it did so in notebook 07.)", _apart_in_07)
said(
    "A mask alone costs nothing, and neither do narrow accesses, which touch the same sectors. Only both together take "
    "longer.", _apart_in_07,
)
said("Element {:,}", lambda: (2**31,))
said("`tl.program_id` is a signed integer of 32 bits,")
said("Beyond {:,} it wraps around to a negative number,", lambda: (2**31 - 1,))
said(
    "Only the odd size in bfloat16 is slower with 64 bits. Most of the added instructions compute the remainder by "
    "511.", _wide,
)
said("On the H200 the two forms show no difference in time.", _relus)
said(
    "In the recorded race the answer's kernel, the library's and the compiler's show no difference: all three take as "
    "long as their bytes.", _race,
)
said(
    "In three of six lines they show no difference: the bytes decide. At the odd size the compiler's kernel pays for "
    "its narrow accesses and their masks, above all in bfloat16,", _verdict,
)
said(
    "Memory limits the library's sigmoid at both sizes, but the compiler's only at the even one. In bfloat16, gelu by "
    "`erf` takes longer than its bytes.", _limits,
)
said(
    "From 200 MB on, the library and the compiler are within {:.0f} % of the copy's rate. Smaller tensors stay below "
    "it,", _sizes,
)
said(
    "At all sizes but one the library and the compiler show no difference; no size here is both large and odd.", _duels,
)
