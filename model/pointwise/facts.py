"""What pointwise.json and the ops' own records have of the lesson's kernels, printed; and the arithmetic beside it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernels.measure.records import load, recorded
from model.gpu.machine import SMS, copy_limit
from model.pointwise import kernels, steps
from model.pointwise.record import NAME, VALUES

if TYPE_CHECKING:
    import pandas

ISSUED = 4  # instructions of warps that an SM issues a clock
MISSING = "not recorded yet: python -m model.pointwise --save"
OP = "add_mul_activation"
PANELS = (("even", "float32"), ("odd", "float32"), ("even", "bfloat16"), ("odd", "bfloat16"))  # of the steps
# What a kernel calls for its numbers.
BLOCKS = {"split": kernels._block, "in_float32": kernels._float32_block, "short": kernels._short_block}


def rows(part: str, **labels) -> pandas.DataFrame:
    """The recorded rows of a part that have these labels. FileNotFoundError: nothing is recorded."""
    found = recorded(NAME)
    for name, value in ({"part": part} | labels).items():
        found = found[found[name] == value] if name in found else found[:0]
    if not len(found):
        raise FileNotFoundError(f"{NAME}, {part}, {labels}: no row")
    return found


def one(part: str, **labels) -> pandas.Series:
    found = rows(part, **labels)
    assert len(found) == 1, f"{part}, {labels}: {len(found)} rows"
    return found.iloc[0]


def step(name: str, shape: str = "even", dtype: str = "float32") -> pandas.Series:
    return one("step", name=name, shape=shape, dtype=dtype)


def of_op(implementation: str, activation: str = "sigmoid", dtype: str = "float32", op: str = OP) -> pandas.Series:
    """65536 × 512, not in place, from the op's own record."""
    found = recorded(op)
    labels = {"part": "bandwidth", "form": "functional", "rows": 65536, "columns": 512, "dtype": dtype,
              "implementation": implementation}  # fmt: skip
    for name, value in (labels | ({"activation": activation} if op == OP else {})).items():
        found = found[found[name] == value]
    assert len(found) == 1
    return found.iloc[0]


def spread_apart(a: pandas.Series, b: pandas.Series) -> bool:
    """Whether two times are outside each other's spread, 20th to 80th percentile."""
    return a["us_p20"] > b["us_p80"] or b["us_p20"] > a["us_p80"]


def bytes_us(dtype: str = "float32") -> float:
    """µs of a step's bytes at the rate of the copy, 65536 × 512."""
    return steps.moved(steps.SHAPES["even"], steps.DTYPES[dtype]) / copy_limit() / 1e3


def clock_mhz() -> float:
    """The SMs' highest clock, as the recorded GPU says."""
    return load("gpu")["device"]["max_sm_mhz"]


def issue_us(a_number: float) -> float:
    """µs in which all SMs issue so many instructions for each number of 65536 × 512, if not a clock is lost."""
    numbers = steps.SHAPES["even"][0] * steps.SHAPES["even"][1]
    return a_number * numbers / steps.LANES / (ISSUED * SMS) / clock_mhz()


def a_number(row: pandas.Series) -> float:
    """Instructions for each number of a form of gelu, whose code has no branch: all that stand there are executed."""
    assert row["branches"] == 0
    return row["instructions"] * steps.LANES * steps.WARPS / steps.step(row["name"]).numbers(steps.DTYPES[row["dtype"]])


def duels() -> pandas.DataFrame:
    """add_mul_activation with sigmoid in float32 at every size of its record's grid: times is ours over
    torch.compile's; won and lost: beyond the spread."""
    import pandas as pd

    found = recorded(OP)
    found, made = found[(found["part"] == "grid") & (found["form"] == "functional")], []
    for (count, columns), cell in found.groupby(["rows", "columns"]):
        ours, theirs = (cell[cell["implementation"] == name].iloc[0] for name in ("triton", "torch.compile"))
        apart, times = spread_apart(ours, theirs), ours["us_p50"] / theirs["us_p50"]
        made.append({"rows": count, "columns": columns, "times": times, "us": ours["us_p50"],
                     "won": apart and times < 1, "lost": apart and times > 1})  # fmt: skip
    return pd.DataFrame(made)


def shown(part: str, name: str, shape: str, dtype: str) -> pandas.Series | None:
    """A row; None: not recorded."""
    try:
        return one(part, name=name, shape=shape, dtype=dtype)
    except FileNotFoundError:
        return None


# --------------------------------------------------------------------------------------------------------- printed


def text(name: str, alone: bool = False) -> list[str]:
    """A kernel's lines, after its head; of one that calls another for its numbers that one's first, or alone."""
    function = steps.step(name).function
    block = BLOCKS.get(function.fn.__name__)
    chosen = [each for each in (block, None if alone and block else function) if each]
    return [line for each in chosen for line in inspect.getsource(each.fn).splitlines()[2:]]


def print_change(before: str, after: str) -> None:
    """The lines that a step takes away and adds."""
    alone = all(steps.step(name).function.fn.__name__ in BLOCKS for name in (before, after))
    print(f"{before} → {after}")
    for line in difflib.ndiff(text(before, alone), text(after, alone)):
        if line[0] in "+-":
            print(f"  {line[0]} {line[2:].strip()}" if alone else f"  {line}")


def print_steps(predicted: Mapping[str, float]) -> None:
    """A line a step: what was said of the float32 time, and the recorded µs."""
    print(f"{'':16} you said" + "".join(f"{f'{shape}, {dtype}':>24}" for shape, dtype in PANELS))
    for each in steps.STEPS:
        guess = f"{predicted[each.name]:8.0f}" if each.name in predicted else " " * 8
        print(f"{each.name:16} {guess}" + "".join(f"{_shown(each, *column):>24}" for column in PANELS))
    for name in ("torch.compile", "copy"):
        labels = {"name": name} if name != "copy" else {"of": "step"}
        part = "copy" if name == "copy" else "step"
        said = "".join(f"{_time(part, shape=s, dtype=d, **labels):>24}" for s, d in PANELS)
        print(f"{'copy, same bytes' if part == 'copy' else name:16} {'':8}{said}")


def _shown(each: steps.Step, shape: str, dtype: str) -> str:
    if dtype != "float32" and not each.in_half:
        return "written for float32"
    return _time("step", name=each.name, shape=shape, dtype=dtype)


def _time(part: str, **labels) -> str:
    try:
        row = one(part, **labels)
    except FileNotFoundError:
        return "not recorded yet"
    return f"{row['us_p50']:.1f} ({row['us_p20']:.1f} to {row['us_p80']:.1f})"


def print_relus() -> None:
    """What each form makes of the special values on the recorded GPU, and its µs."""
    print(f"{'':14}" + "".join(f"{value:>7}" for value in VALUES) + "   µs")
    try:
        for _, row in rows("values").iterrows():
            us = _time("relu", name=row["name"]) if row["name"] != "eager" else ""
            print(f"{row['name']:14}" + "".join(f"{value:>7}" for value in row["values"]) + f"   {us}")
    except FileNotFoundError:
        print(MISSING)


def print_gelus() -> None:
    """Of both forms in both dtypes: instructions a number, the µs to issue them, those of the bytes, and the record."""
    print("                         instructions  to issue  bytes   recorded µs")
    for dtype in steps.DTYPES:
        for each in steps.GELUS:
            try:
                count = a_number(one("gelu", name=each.name, dtype=dtype))
                said = f"{count:12.1f}  {issue_us(count):8.1f}  {bytes_us(dtype):5.1f}   "
            except FileNotFoundError:
                said = f"{'':22}  {bytes_us(dtype):5.1f}   "
            print(f"{each.name:14} {dtype:9}" + said + _time("gelu", name=each.name, dtype=dtype))
