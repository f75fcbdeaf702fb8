"""What is recorded of the lesson's kernels: times of a GPU (cuda_steps.json), and what nvcc makes of them."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING

from lessons.n10_cuda_kernels.counting import SAVED, STEPS, WAYS
from lessons.shared.ncu import launches
from lessons.shared.records import ADD_MUL_ACTIVATION, NO_RECORD, Record, copy_us, spread

if TYPE_CHECKING:
    import pandas

CUDA_STEPS = Record("cuda_steps")
WAY = {
    "eager": "eager", "torch.compile": "torch.compile", "triton, by hand": "the Triton kernel above",
    "cuda, by hand": "the lecture's answer to puzzle 4", "triton, the op": "the library's op, Triton",
    "cuda, the op": "the library's op, CUDA",
}


@functools.cache
def compiled() -> dict:
    return json.loads(SAVED.read_text())


def kernel(name: str) -> dict:
    """registers, executed, order of a compiled kernel."""
    return compiled()["kernels"][name]


def row(part: str, **labels) -> pandas.Series | None:
    """The record's row; None where there is none yet."""
    try:
        return CUDA_STEPS.one(part, **labels)
    except LookupError:
        return None


def us_of(part: str, **labels) -> str:
    """The row's µs in words; on another GPU, *coalesced*'s beside a step's."""
    found = row(part, **labels)
    if found is None:
        return CUDA_STEPS.elsewhere(part, beside="coalesced", **labels)
    return f"recorded {found['us_p50']:.1f} µs"


def share(found: pandas.Series) -> float:
    """Percent of the copy's rate, the lecture's yardstick."""
    return 100 * copy_us(found["bytes"]) / found["us_p50"]


def on_gpu(name: str, metric: str) -> float:
    """What ncu counted in a kernel. LookupError: it did not."""
    return dict(launches(CUDA_STEPS.head("ncu", "lines")))[name][metric]


# -------------------------------------------------------------------------------------------------------------- printed


def show_steps(predicted: dict[str, float | None]) -> None:
    """A line a step: µs, and the order in which a thread's first accesses stand in the machine code."""
    for name in STEPS:
        said = "" if predicted.get(name) is None else f"  you said {predicted[name]}"
        print(f"{name:10} {us_of('step', name=name):20} {kernel(name)['order'][:12]}{said}")


def show_indices() -> None:
    """A line a way and a dtype: the loop's instructions for one element, and µs at both shapes."""
    for dtype in ("float32", "bfloat16"):
        for name in WAYS:
            found, labels = kernel(f"{name} {dtype}"), {"name": name, "dtype": dtype}
            even, odd = (us_of("index", shape=shape, **labels) for shape in ("even", "odd"))
            print(f"{dtype:8} {name:18} {found['iteration']:4.1f} instructions; 512 columns: {even}, 511: {odd}")


def show_op() -> None:
    """µs of the op at 65536 × 512 in float32, all ways of one run."""
    try:
        record = CUDA_STEPS.with_part("op", shape="even")
    except LookupError:
        print(NO_RECORD)
        return
    print(f"recorded on an {record.head('GPU')}: sigmoid, 65536 × 512 float32, µs (20th to 80th percentile)")
    found = record.rows("op", shape="even").set_index("name")
    for name, said in WAY.items():
        print(f"  {said:34} {spread(found.loc[name]) if name in found.index else NO_RECORD}")


def of_library(implementation: str) -> pandas.Series:
    labels = {"form": "functional", "rows": 65536, "dtype": "float32", "activation": "sigmoid"}
    return ADD_MUL_ACTIVATION.one("bandwidth", implementation=implementation, **labels)


SAID = re.compile(r"Invalid|by thread|Access to|Program hit|Race reported|and Read")


def show_sanitizer() -> None:
    """The lines in which compute-sanitizer said on the GPU what is wrong, and where."""
    for kind, lines in CUDA_STEPS.head("sanitizer").items():
        print(kind, *(line.strip("= ") for line in lines if SAID.search(line)), sep="\n    ")
