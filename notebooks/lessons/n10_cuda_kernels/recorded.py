"""What is recorded of the lesson's kernels: times of a GPU (cuda_steps.json), and what the compilers make of them."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING

from lessons.n10_cuda_kernels.counting import SAVED, STEPS, VARIANTS, WIDTH
from lessons.n10_cuda_kernels.experiment import counted
from lessons.shared.records import Record, copy_us

if TYPE_CHECKING:
    import pandas

HOW = {
    "base": "2^x and 1/x by name, a multiplication, 32 bits",
    "hint": "a streaming store",
    "remainder": "i % columns",
    "bits64": "a 64-bit index",
    "expf": "1 / (1 + expf(-z))",
}
CUDA_STEPS = Record("cuda_steps")


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


def kernel_us(part: str, name: str, **labels) -> float:
    """The median µs of a step, a variant (of blocks of 256 threads, if nothing else is said) or the op."""
    return CUDA_STEPS.us(part, name=name, **({"threads": 256} | labels if part == "variant" else labels))


def share(row: pandas.Series) -> float:
    """Percent of the copy's rate, the lecture's yardstick."""
    return 100 * copy_us(row["bytes"]) / row["us_p50"]


def on_gpu(name: str, metric: str) -> float:
    """What ncu counted in a kernel. LookupError: it did not."""
    return counted(CUDA_STEPS.head("ncu", "lines"))[name][metric]


# -------------------------------------------------------------------------------------------------------------- printed


def print_steps() -> None:
    """A line a step: what a thread needs and executes."""
    print(f"{'':10}  registers  execute, a number")
    for name in STEPS:
        print(f"{name:10}  {kernel(name)['registers']:9}  {a_number(name):17.1f}")


def print_variants(predicted: str | None = None) -> None:
    """A line a variant: what a thread needs and executes, and its time in both dtypes. predicted: the
    one that was said to execute most."""
    if predicted:
        worst = max(VARIANTS, key=lambda name: a_number(f"{name}_float32"))
        print(f"most instructions: you said {predicted}, it is {worst}")
    print(f"{'':48}  registers  stand there  execute, a number   µs")
    for dtype in WIDTH:
        print(dtype)
        for name in VARIANTS:
            found = kernel(f"{name}_{dtype}")
            text = f"  {HOW[name]:46}  {found['registers']:9}  {found['standing']:11}  "
            text += f"{a_number(f'{name}_{dtype}'):17.1f}"
            print(text + f"  {kernel_us('variant', name, dtype=dtype):5.1f}")
        found = CUDA_STEPS.rows("variant", name="base", dtype=dtype).sort_values("threads")
        times = (f"{row['threads']:.0f}: {row['us_p50']:.1f}" for _, row in found.iterrows())
        print("  µs by threads a block  " + ", ".join(times))


def print_sanitizer() -> None:
    """What compute-sanitizer said on the GPU, without its heads and how the host came there."""
    for kind, lines in CUDA_STEPS.head("sanitizer").items():
        said = (line.strip("= ") for line in lines if not re.search("COMPUTE-SANITIZER|[Hh]ost (back|Frame)", line))
        print(kind, *filter(None, said), sep="\n    ")
