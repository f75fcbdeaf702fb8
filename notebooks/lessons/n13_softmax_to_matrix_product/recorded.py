"""What products.json and softmax.json have of the lesson's kernels, printed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from lessons.n13_softmax_to_matrix_product.arithmetic import SQUARE
from lessons.n13_softmax_to_matrix_product.launch import STEPS, TUNED
from lessons.shared.prediction import verdict
from lessons.shared.records import Record, tflop_per_s

if TYPE_CHECKING:
    import pandas

PRODUCTS, SOFTMAX = Record("products"), Record("softmax")
LIBRARY = ("mm", "addmm, relu", "fused")


def step(name: str, size: int = SQUARE) -> pandas.Series:
    return PRODUCTS.one("step", name=name, rows=size)


def layer(name: str, which: str, batch: int) -> pandas.Series:
    return PRODUCTS.one("layer", layer=name, name=which, rows=batch)


def softmax(implementation: str, count: int, columns: int, dtype: str = "float32") -> pandas.Series:
    """The forward, from the op's record."""
    labels = {"implementation": implementation, "rows": count, "columns": columns, "dtype": dtype, "form": "functional"}
    return SOFTMAX.rows(**labels).query("part in ('bandwidth', 'grid')").iloc[0]


def judge_softmax(predicted: float) -> None:
    """The prediction beside our kernel's µs, 65536 rows of 512 float32."""
    row = softmax("triton", 65536, 512)
    why = f"Read once and written once: {row['percent_of_copy']:.0f} % of the copy's rate."
    verdict("softmax", predicted, row["us_p50"], "µs", why, how="recorded")


def print_steps(predicted: str = "") -> None:
    """A line a step: µs at 4096³ in bfloat16, TFLOP/s, the part of cuBLAS's rate, registers, KB of shared memory."""

    library = step("fused")
    print("                   µs   (20th to 80th percentile)  TFLOP/s  of cuBLAS  registers  shared KB")
    names = (*STEPS, TUNED)
    gains = {b: step(a)["us_p50"] / step(b)["us_p50"] for a, b in itertools.pairwise(names)}
    most = max(gains, key=gains.get)
    for name in names:
        row = step(name)
        note = "  you said" * (name == predicted) + f"  gains most, {gains.get(name, 1):.1f} ×" * (name == most)
        spread = f"({row['us_p20']:,.1f} to {row['us_p80']:,.1f})"
        print(f"{name:13} {row['us_p50']:9,.1f}  {spread:>24}  {tflop_per_s(row):8.1f}"
              f"  {library['us_p50'] / row['us_p50']:8.0%}  {row['registers']:9.0f}"
              f"  {row['shared'] / 1024:9.0f}{note}")
    for name in LIBRARY:
        print(f"cuBLAS {name:11} {step(name)['us_p50']:9,.1f}  {tflop_per_s(step(name)):36.1f}")
    print("tuned:", step(TUNED)["config"])


def print_layers() -> None:
    """DLRM's layers in bfloat16: µs of ours and of cuBLAS with bias and relu in one kernel, and in two."""

    layers = PRODUCTS.rows("layer")
    print("layer             rows   ours, µs  cuBLAS fused  addmm, relu  ours to cuBLAS fused")
    for (batch, name), some in layers.groupby(["rows", "layer"], sort=False):
        us = some.set_index("name")["us_p50"]
        if TUNED not in us:
            continue
        config = some.set_index("name")["config"][TUNED]
        print(f"{name:15} {batch:6.0f}  {us[TUNED]:9.2f}  {us['fused']:12.2f}  {us['addmm, relu']:11.2f}"
              f"  {us[TUNED] / us['fused']:6.2f} ×, {config}")


def print_exact() -> None:
    """The largest error of cuBLAS's products of 2048³, as part of Σ |x| |weight|."""

    for _, row in PRODUCTS.rows("exact").iterrows():
        print(f"{row['precision']}: {row['error']:.1e} of Σ |x| |weight|")


def racecheck_lines() -> list[str]:
    """What compute-sanitizer said of the kernel without its second barrier, or why it was not asked."""
    row = PRODUCTS.one("racecheck")
    return row["lines"] or [row["why"]]


def print_racecheck() -> None:
    print(*racecheck_lines(), sep="\n")
