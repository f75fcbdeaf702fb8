"""What is recorded of the lesson's kernels: times of a GPU (cuda_steps.json), and what nvcc makes of them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from lessons.n10_cuda_kernels.counting import SAVED, STEPS, STORES, WAYS
from lessons.shared.ncu import launches
from lessons.shared.records import NO_RECORD, Record, spread

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


def on_gpu(name: str, metric: str) -> float:
    """What ncu counted in a kernel. LookupError: it did not."""
    return dict(launches(CUDA_STEPS.head("ncu", "lines")))[name][metric]


# -------------------------------------------------------------------------------------------------------------- printed


def show_steps(predicted: dict[str, float | None], here: Mapping[str, float] = MappingProxyType({})) -> None:
    """A line a step: the order in which a thread's first accesses stand in the machine code, µs of each GPU
    that step_runs() has, what was predicted, and µs of this GPU."""
    runs = step_runs()
    print(f"{'recorded, µs':27}" + "".join(f"{gpu_of(record):>17}" for record in runs) + f"{'here':>9}" * bool(here))
    for name in STEPS:
        us = [record.us("step", name=name) if _has(record, name) else None for record in runs]
        text = "".join(f"{'-' if value is None else format(value, '.1f'):>17}" for value in us)
        mine = f"{here[name]:9.1f}" if name in here else ""
        prediction = "" if predicted.get(name) is None else f"   your prediction: {predicted[name]}"
        print(f"{name:10} {_order(name):16}{text}{mine}{prediction}")


def _order(name: str, at_most: int = 12) -> str:
    order = kernel(name)["order"]
    turns = STORES.get(name, 1) // order.count("S")  # of a loop that is left in the machine code
    return order[:at_most] + "…" * (len(order) > at_most) + f" ×{turns}" * (turns > 1)


def step_runs() -> list[Record]:
    """The record of the steps, and another GPU's if that alone has *early*."""
    first, second = CUDA_STEPS, CUDA_STEPS.with_part("step", name="early")
    return [first] if second == first else [first, second]


def gpu_of(record: Record) -> str:
    return record.head("GPU").removeprefix("NVIDIA ")


def _has(record: Record, name: str) -> bool:
    return name in set(record.rows("step")["name"])


def show_indices() -> None:
    """A line a way and a dtype: the loop's instructions for one element, and µs at both shapes."""
    try:
        record = CUDA_STEPS.with_part("index")
    except LookupError:
        print(NO_RECORD)
        return
    print(f"recorded on an {record.head('GPU')}: instructions per element, µs at two shapes")
    print(f"{'':29}instructions   65536 × 512   65535 × 511")
    for dtype in ("float32", "bfloat16"):
        for name in WAYS:
            even, odd = (record.us("index", shape=shape, name=name, dtype=dtype) for shape in ("even", "odd"))
            print(f"{dtype:9} {name:18} {kernel(f'{name} {dtype}')['iteration']:13.1f} {even:13.1f} {odd:13.1f}")


def show_op() -> None:
    """µs of the op at 65536 × 512 in float32, all ways of one run."""
    try:
        record = CUDA_STEPS.with_part("op", shape="even")
    except LookupError:
        print(NO_RECORD)
        return
    print(f"recorded on an {record.head('GPU')}: sigmoid, 65536 × 512 float32, µs (20th to 80th percentile)")
    rows = record.rows("op", shape="even").set_index("name")
    for name, way in WAY.items():
        print(f"  {way:34} {spread(rows.loc[name]) if name in rows.index else NO_RECORD}")


def show_forms() -> None:
    """A line a form of the capstone's kernel: instructions per element, its loads, µs where they are recorded."""
    try:
        record = CUDA_STEPS.with_part("form")
        print(f"recorded on an {record.head('GPU')}: 65536 × 512 float32, µs (20th to 80th percentile)")
        us = {name: spread(record.one("form", name=name)) for name in compiled()["forms"]}
    except LookupError:
        us = {}
    print(f"{'form':20} instructions per element   loads" + f"{'µs':>10}" * bool(us))
    for name, form in compiled()["forms"].items():
        told = WAY.get(name, name).removeprefix("the ")
        print(f"{told:20} {form['an_element']:24.1f}   {form['loads']:12}{us.get(name, '')}".rstrip())


SAID = re.compile(r"Invalid|by thread|Access to|Program hit|Race reported|and Read")


def show_sanitizer() -> None:
    """The lines in which compute-sanitizer said on the GPU what is wrong, and where."""
    for kind, lines in CUDA_STEPS.head("sanitizer").items():
        print(kind, *(line.strip("= ") for line in lines if SAID.search(line)), sep="\n    ")
