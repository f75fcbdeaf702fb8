"""What is recorded of the lesson's kernels: times of a GPU (cuda_steps.json), and what the compilers make of them."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING

from kernels.measure.records import load, recorded
from model.cuda_steps.counting import SAVED, STEPS, VARIANTS, WIDTH
from model.cuda_steps.record import NAME, counted
from model.gpu.machine import copy_limit

if TYPE_CHECKING:
    import pandas

HOW = {
    "base": "2^x and 1/x by name, a multiplication, 32 bits",
    "hint": "a streaming store",
    "remainder": "i % columns",
    "bits64": "a 64-bit index",
    "expf": "1 / (1 + expf(-z))",
}
NOT_YET = "not recorded yet: python -m model.cuda_steps --save"


@functools.cache
def compiled() -> dict:
    return json.loads(SAVED.read_text())


def kernel(name: str) -> dict:
    """registers, standing, executed, kinds of a compiled kernel."""
    return compiled()["kernels"][name]


def a_number(name: str) -> float:
    """Instructions that a thread executes for each number that it stores."""
    numbers = STEPS[name] if name in STEPS else WIDTH[name.rpartition("_")[2]]
    return kernel(name)["executed"] / numbers


# ------------------------------------------------------------------------------------------------- from the record


def rows(part: str, **labels) -> pandas.DataFrame:
    """The recorded rows of a part that have these labels. FileNotFoundError: nothing is recorded."""
    found = recorded(NAME)
    found = found[found["part"] == part]
    for name, value in labels.items():
        found = found[found[name] == value]
    assert len(found), f"{part}, {labels}: no row"
    return found


def one(part: str, **labels) -> pandas.Series:
    found = rows(part, **labels)
    assert len(found) == 1, f"{part}, {labels}: {len(found)} rows"
    return found.iloc[0]


def us(part: str, name: str, dtype: str | None = None, threads: int = 256) -> float:
    labels = {"dtype": dtype} if dtype else {}
    labels |= {"threads": threads} if part == "variant" else {}
    return one(part, name=name, **labels)["us_p50"]


def share(row: pandas.Series) -> float:
    """Percent of the copy's rate, the lecture's yardstick."""
    return 100 * row["bytes"] / row["us_p50"] / 1e3 / copy_limit()


def apart(a: pandas.Series, b: pandas.Series) -> bool:
    """Whether two times differ by more than their spreads and 3 %."""
    low, high = sorted((a, b), key=lambda row: row["us_p50"])
    return low["us_p80"] < high["us_p20"] and high["us_p50"] > 1.03 * low["us_p50"]


def is_recorded() -> bool:
    try:
        load(NAME)
    except FileNotFoundError:
        return False
    return True


def on_gpu(name: str, metric: str) -> float:
    """What ncu counted in a kernel. FileNotFoundError: nothing is recorded, or the GPU refused."""
    found = counted(load(NAME).get("ncu", {}).get("lines", []))
    if metric not in found.get(name, {}):
        raise FileNotFoundError(f"ncu counted no {metric} of {name}")
    return found[name][metric]


# -------------------------------------------------------------------------------------------------------------- printed


def print_steps() -> None:
    """A line a step: what a thread needs and executes."""
    print(f"{'':10}  registers  execute, a number")
    for name in STEPS:
        print(f"{name:10}  {kernel(name)['registers']:9}  {a_number(name):17.1f}")


def print_variants(predicted: str | None = None) -> None:
    """A line a variant: what a thread needs and executes, and its time in both dtypes, if that is recorded. predicted:
    the one that was said to execute most."""
    if predicted:
        worst = max(VARIANTS, key=lambda name: a_number(f"{name}_float32"))
        print(f"most instructions: you said {predicted}, it is {worst}")
    here = is_recorded()
    print(f"{'':48}  registers  stand there  execute, a number" + ("   µs" if here else ""))
    for dtype in WIDTH:
        print(dtype)
        for name in VARIANTS:
            found = kernel(f"{name}_{dtype}")
            text = f"  {HOW[name]:46}  {found['registers']:9}  {found['standing']:11}  "
            text += f"{a_number(f'{name}_{dtype}'):17.1f}"
            print(text + (f"  {us('variant', name, dtype):5.1f}" if here else ""))
        if here:
            times = (f"{n:.0f}: {us('variant', 'base', dtype, n):.1f}" for n in sorted(
                rows("variant", name="base", dtype=dtype)["threads"]))  # fmt: skip
            print("  µs by threads a block  " + ", ".join(times))
    if not here:
        print("µs: " + NOT_YET)


def print_sanitizer() -> None:
    """What compute-sanitizer said on the GPU, without its heads and how the host came there."""
    if not is_recorded():
        print("compute-sanitizer: " + NOT_YET)
        return
    for kind, lines in load(NAME).get("sanitizer", {}).items():
        said = (line.strip("= ") for line in lines if not re.search("COMPUTE-SANITIZER|[Hh]ost (back|Frame)", line))
        print(kind, *filter(None, said), sep="\n    ")
