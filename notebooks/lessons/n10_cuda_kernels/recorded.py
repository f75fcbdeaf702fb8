"""What is recorded of the lesson's kernels: times of a GPU (cuda_steps.json), and what nvcc makes of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from types import MappingProxyType

from lessons.n10_cuda_kernels.counting import SAVED, STEPS, STORES
from lessons.shared.ncu import launches
from lessons.shared.records import Record, device

CUDA_STEPS = Record("cuda_steps")
REQUESTS, SECTORS = (f"l1tex__t_{what}_pipe_lsu_mem_global_op_ld.sum" for what in ("requests", "sectors"))  # ncu's


@functools.cache
def compiled() -> dict:
    return json.loads(SAVED.read_text())


def kernel(name: str) -> dict:
    """registers, order of a compiled step."""
    return compiled()["kernels"][name]


def on_gpu(name: str, metric: str) -> float:
    """What ncu counted in a step. LookupError: it did not."""
    return dict(launches(CUDA_STEPS.head("ncu", "lines")))[name][metric]


def sectors(name: str) -> float:
    """That a warp's read touches, on average, by ncu."""
    return on_gpu(name, SECTORS) / on_gpu(name, REQUESTS)


def in_flight(name: str) -> float:
    """KB of x that an SM's threads wait for: each for what it loads before its first store. The bias is loaded as
    often."""
    loads, width = kernel(name)["order"].index("S") // 2, STEPS[name] // STORES[name]
    return device("max_threads_per_multi_processor") * loads * width * 4 / 1024


def show_steps(predicted: dict[str, float | None], here: Mapping[str, float] = MappingProxyType({})) -> None:
    """A line a step: the order in which a thread's first accesses stand in the machine code, the sectors of a request,
    bytes in flight, µs, what was predicted, and µs of this GPU. The last line is a copy of as many bytes."""
    print(f"recorded on an {CUDA_STEPS.head('GPU')}, 65536 × 512 float32")
    print(f"{'sectors a request':>42}{'in flight on an SM':>20}{'µs':>9}" + f"{'here':>9}" * bool(here))
    for name in STEPS:
        mine = f"{here[name]:9.1f}" if name in here else ""
        prediction = "" if predicted.get(name) is None else f"   your prediction: {predicted[name]}"
        counted = f"{sectors(name):17.0f}{in_flight(name):17.0f} KB"
        print(f"{name:10} {_order(name):14}{counted}{CUDA_STEPS.us('step', name=name):9.1f}{mine}{prediction}")
    print(f"{'a copy of as many bytes':62}{CUDA_STEPS.us('copy', of='step'):9.1f}")


def _order(name: str, at_most: int = 12) -> str:
    order = kernel(name)["order"]
    turns = STORES[name] // order.count("S")  # of a loop that is left in the machine code
    return order[:at_most] + "…" * (len(order) > at_most) + f" ×{turns}" * (turns > 1)
