"""What pointwise.json and the ops' own records have of the lesson's kernels, printed; and the arithmetic beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lessons.n08_triton_kernels import steps
from lessons.shared.records import (
    ADD_MUL_ACTIVATION,
    ADD_RELU,
    LANES,
    Record,
    apart,
    copy_us,
    device,
    sms,
    spread,
)

if TYPE_CHECKING:
    import pandas

POINTWISE = Record("pointwise")
ISSUED = 4  # instructions of warps that an SM issues a clock
PANELS = (("even", "float32"), ("odd", "float32"), ("even", "bfloat16"), ("odd", "bfloat16"))  # of the steps


def step(name: str, shape: str = "even", dtype: str = "float32") -> pandas.Series:
    return POINTWISE.one("step", name=name, shape=shape, dtype=dtype)


def of_op(
    implementation: str, activation: str = "sigmoid", dtype: str = "float32", op: str = ADD_MUL_ACTIVATION.name
) -> pandas.Series:
    """65536 × 512, not in place, from the op's own record."""
    labels = {"form": "functional", "rows": 65536, "columns": 512, "dtype": dtype, "implementation": implementation}
    return Record(op).one("bandwidth", **labels, **({} if op == ADD_RELU.name else {"activation": activation}))


def bytes_us(dtype: str = "float32") -> float:
    """µs of a step's bytes at the rate of the copy, 65536 × 512."""
    return copy_us(steps.moved(steps.SHAPES["even"], steps.DTYPES[dtype]))


def issue_us(a_number: float) -> float:
    """µs in which all SMs issue so many instructions for each number of 65536 × 512, if not a clock is lost."""
    numbers = steps.SHAPES["even"][0] * steps.SHAPES["even"][1]
    return a_number * numbers / LANES / (ISSUED * sms()) / device("max_sm_mhz")


def a_number(row: pandas.Series) -> float:
    """Instructions for each number of a form of gelu, whose code has no branch: all that stand there are executed."""
    assert row["branches"] == 0
    return row["instructions"] * LANES * steps.WARPS / steps.step(row["name"]).numbers(steps.DTYPES[row["dtype"]])


def duels() -> pandas.DataFrame:
    """add_mul_activation with sigmoid in float32 at every size of its record's grid: times is ours over
    torch.compile's; won and lost: beyond the spread."""
    import pandas as pd

    found, made = ADD_MUL_ACTIVATION.rows("grid", form="functional"), []
    for (count, columns), cell in found.groupby(["rows", "columns"]):
        ours, theirs = (cell[cell["implementation"] == name].iloc[0] for name in ("triton", "torch.compile"))
        differ, times = apart(ours, theirs, least=1), ours["us_p50"] / theirs["us_p50"]
        made.append({"rows": count, "columns": columns, "times": times, "us": ours["us_p50"],
                     "won": differ and times < 1, "lost": differ and times > 1})
    return pd.DataFrame(made)


# --------------------------------------------------------------------------------------------------------- printed


def print_steps(predicted: Mapping[str, float]) -> None:
    """A line a step: what was said of the float32 time, and the recorded µs."""
    print(f"{'':16} you said" + "".join(f"{f'{shape}, {dtype}':>24}" for shape, dtype in PANELS))
    for each in steps.STEPS:
        guess = f"{predicted[each.name]:8.0f}" if each.name in predicted else " " * 8
        print(f"{each.name:16} {guess}" + "".join(f"{_shown(each, *column):>24}" for column in PANELS))
    for name in ("torch.compile", "copy"):
        labels = {"name": name} if name != "copy" else {"of": "step"}
        part = "copy" if name == "copy" else "step"
        said = "".join(f"{spread(POINTWISE.one(part, shape=s, dtype=d, **labels)):>24}" for s, d in PANELS)
        print(f"{'copy, same bytes' if part == 'copy' else name:16} {'':8}{said}")


def _shown(each: steps.Step, shape: str, dtype: str) -> str:
    if dtype != "float32" and not each.in_half:
        return "written for float32"
    return spread(step(each.name, shape, dtype))


def print_gelus() -> None:
    """Of both forms in both dtypes: instructions a number, the µs to issue them, those of the bytes, and the record."""
    print("                         instructions  to issue  bytes   recorded µs")
    for dtype in steps.DTYPES:
        for each in steps.GELUS:
            row = POINTWISE.one("gelu", name=each.name, dtype=dtype)
            count = a_number(row)
            said = f"{count:12.1f}  {issue_us(count):8.1f}  {bytes_us(dtype):5.1f}   "
            print(f"{each.name:14} {dtype:9}" + said + spread(row))
