"""The arithmetic of a tiled product, and what products.json and softmax.json have of the lesson's kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from kernels.measure.records import load, recorded
from kernels.measure.verdict import verdict
from model.products.launch import STEPS, TUNED
from model.products.record import NAME

if TYPE_CHECKING:
    import pandas

MISSING = "not recorded yet: python -m model.products --save"
SQUARE, SMS = 4096, 132
RESIDENT = 2 * SMS  # of the programs of tiles of 128 by 128: an SM has registers and shared memory for two
LIBRARY = ("mm", "addmm, relu", "fused")


# ------------------------------------------------------------------------------------------------------ arithmetic


def read_gb(rows: int, columns: int, size: int = SQUARE, itemsize: int = 2) -> float:
    """GB that all programs together load, in a product of squares, each for a tile of so many rows and columns."""
    return (size // rows) * (size // columns) * (rows + columns) * size * itemsize / 1e9


def place(program: int, rows: int, columns: int, group: int) -> tuple[int, int]:
    """The tile that a program takes: `group` rows of tiles at a time, down first, then to the right."""
    first = program // (group * columns) * group
    high = min(group, rows - first)
    inside = program % (group * columns)
    return first + inside % high, inside // high


def strips(order: Callable, rows: int, columns: int, group: int, programs: int = RESIDENT) -> tuple[int, int]:
    """How many rows of tiles, and how many columns of them, the first programs need: strips of x and of the weight."""
    taken = [order(program, rows, columns, group) for program in range(min(programs, rows * columns))]
    return len({row for row, _ in taken}), len({column for _, column in taken})


def bank(number: int) -> int:
    """Of 32, the bank of shared memory that a number of 4 bytes lies in."""
    return number % 32


def ways(apart: int) -> int:
    """How many of a warp's lanes ask one bank, if lane k reads number k · apart: as many turns it takes."""
    asked = [bank(lane * apart) for lane in range(32)]
    return max(map(asked.count, asked))


def sum_of_ones(count: int, dtype: torch.dtype) -> float:
    """1 + 1 + …, each sum rounded to the dtype."""
    total = torch.zeros((), dtype=dtype)
    for _ in range(count):
        total += 1
    return float(total)


# ------------------------------------------------------------------------------------------------- from the records


def rows(part: str, **labels) -> pandas.DataFrame:
    """The recorded rows of a part that have these labels. FileNotFoundError: there is none that was right."""
    found = recorded(NAME)
    found = found[found["part"] == part]
    for name, value in labels.items():
        found = found[found[name] == value] if name in found else found[:0]
    if not len(found):
        raise FileNotFoundError(f"{part}, {labels}: no row")
    return found


def one(part: str, **labels) -> pandas.Series:
    found = rows(part, **labels)
    assert len(found) == 1, f"{part}, {labels}: {len(found)} rows"
    return found.iloc[0]


def step(name: str, size: int = SQUARE) -> pandas.Series:
    return one("step", name=name, rows=size)


def layer(name: str, which: str, batch: int) -> pandas.Series:
    return one("layer", layer=name, name=which, rows=batch)


def tflop_per_s(row: pandas.Series) -> float:
    return row["flops"] / row["us_p50"] / 1e6


def softmax(implementation: str, count: int, columns: int, dtype: str = "float32") -> pandas.Series:
    """Of the op's record, its forward."""
    found = recorded("softmax")
    labels = {"implementation": implementation, "rows": count, "columns": columns, "dtype": dtype, "form": "functional"}
    for name, value in labels.items():
        found = found[found[name] == value]
    return found[found["part"].isin(["bandwidth", "grid"])].iloc[0]


def _or_missing(show: Callable[[], None]) -> None:
    try:
        show()
    except FileNotFoundError:
        print(MISSING)


def judge_softmax(predicted: float) -> None:
    """The prediction beside our kernel's µs, 65536 rows of 512 float32."""
    row = softmax("triton", 65536, 512)
    why = f"Read once and written once: {row['percent_of_copy']:.0f} % of the copy's rate."
    verdict("softmax", predicted, row["us_p50"], "µs", why, how="recorded")


def print_steps(predicted: str = "") -> None:
    """A line a step: µs at 4096³ in bfloat16, TFLOP/s, the part of cuBLAS's rate, registers, KB of shared memory."""

    def show() -> None:
        library = step("fused")
        print("                   µs   (20th to 80th percentile)  TFLOP/s  of cuBLAS  registers  shared KB")
        names = (*STEPS, TUNED)
        gains = {b: step(a)["us_p50"] / step(b)["us_p50"] for a, b in itertools.pairwise(names)}
        most = max(gains, key=gains.get)
        for name in names:
            row = step(name)
            said = "  you said" * (name == predicted) + f"  gains most, {gains.get(name, 1):.1f} ×" * (name == most)
            spread = f"({row['us_p20']:,.1f} to {row['us_p80']:,.1f})"
            print(f"{name:13} {row['us_p50']:9,.1f}  {spread:>24}  {tflop_per_s(row):8.1f}"
                  f"  {library['us_p50'] / row['us_p50']:8.0%}  {row['registers']:9.0f}"
                  f"  {row['shared'] / 1024:9.0f}{said}")  # fmt: skip
        for name in LIBRARY:
            print(f"cuBLAS {name:11} {step(name)['us_p50']:9,.1f}  {tflop_per_s(step(name)):36.1f}")
        print("tuned:", step(TUNED)["config"])

    _or_missing(show)


def print_layers() -> None:
    """DLRM's layers in bfloat16: µs of ours and of cuBLAS with bias and relu in one kernel, and in two."""

    def show() -> None:
        found = rows("layer")
        print("layer             rows   ours, µs  cuBLAS fused  addmm, relu  ours to cuBLAS fused")
        for (batch, name), some in found.groupby(["rows", "layer"], sort=False):
            us = some.set_index("name")["us_p50"]
            if TUNED not in us:
                continue
            config = some.set_index("name")["config"][TUNED]
            print(f"{name:15} {batch:6.0f}  {us[TUNED]:9.2f}  {us['fused']:12.2f}  {us['addmm, relu']:11.2f}"
                  f"  {us[TUNED] / us['fused']:6.2f} ×, {config}")  # fmt: skip

    _or_missing(show)


def print_exact() -> None:
    """The largest error of cuBLAS's products of 2048³, as part of Σ |x| |weight|."""

    def show() -> None:
        for _, row in rows("exact").iterrows():
            print(f"{row['precision']}: {row['error']:.1e} of Σ |x| |weight|")

    _or_missing(show)


def racecheck_lines() -> list[str]:
    """What compute-sanitizer said of the kernel without its second barrier, or why it was not asked."""
    (found,) = (row for row in load(NAME)["rows"] if row["part"] == "racecheck")
    return found["lines"] or [found["why"]]


def print_racecheck() -> None:
    def show() -> None:
        print(*racecheck_lines(), sep="\n")

    _or_missing(show)
