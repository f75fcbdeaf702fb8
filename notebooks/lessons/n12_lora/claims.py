"""12, LoRA: its layers and its training as recorded, what E explains, and what bfloat16 keeps."""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import TYPE_CHECKING

from lessons.n12_lora import merging, recorded
from lessons.n12_lora.experiment import (
    AUTOTUNED,
    COMPILED,
    EAGER,
    IN_PLACE,
    KERNEL,
    MERGED,
    ONE_PRODUCT,
    RELU_INSIDE,
)
from lessons.n12_lora.recorded import VARIANTS, e_us, time_us
from lessons.shared.claim import claim, printed
from lessons.shared.records import LEAST, Record, apart

if TYPE_CHECKING:
    import pandas

NOTEBOOK = "12"
OP = "the op"
FUSED = VARIANTS[OP]
SEVEN_E = COMPILED, OP, ONE_PRODUCT
SMALLER = 1024
FASTEST = AUTOTUNED, KERNEL, RELU_INSIDE  # of the large layer, where the adapter stays apart
# The lesson's names for the ways, and the E that each moves.
WAYS = {
    "eager": (EAGER, 11), "`torch.compile`": (COMPILED, 7), "the op": (FUSED, 7), "`addmm_`": (IN_PLACE, 7),
    "one product": (ONE_PRODUCT, 7), "relu inside": (RELU_INSIDE, 5), "LoRA kernel": (KERNEL, 5), "merged": (MERGED, 4),
}


def _added() -> float:
    """The thin products' arithmetic, % of the large one's, at rank 16 with in = out = 4096."""
    return 100 * 2 * 16 * recorded.WIDTH / recorded.WIDTH**2


def _slower() -> float:
    """% that LoRA takes longer in eager than the frozen layer, which is what merged runs."""
    return 100 * (time_us("layer", EAGER) / time_us("layer", MERGED) - 1)


def _eager() -> tuple:
    return time_us("layer", EAGER) - time_us("layer", MERGED), _slower(), _added()


def _seven_more() -> tuple:
    longer = time_us("layer", EAGER) - time_us("layer", MERGED)
    assert 0.5 * longer < e_us(7) < longer, "most of the difference"
    return (e_us(7),)


def _fused() -> tuple:
    assert not apart(recorded.row("layer", OP), recorded.row("layer", COMPILED))
    return time_us("layer", EAGER), time_us("layer", OP), time_us("layer", COMPILED)


def _seven() -> tuple:
    times = [time_us("layer", name) for name in SEVEN_E]
    assert max(times) < LEAST * min(times)
    assert max(times) < time_us("layer", EAGER)
    return (time_us("layer", MERGED),)


def _elsewhere(*names: str) -> list[float]:
    """µs of these ways of the layer, in another GPU's run."""
    return [_elsewhere_row(name)["us_p50"] for name in names]


def _elsewhere_row(name: str, width: int = recorded.WIDTH) -> pandas.Series:
    return _other().one("layer", variant=name, rows=recorded.ROWS, width=width)


def _five() -> tuple:
    """How many µs less than the op both ways take: within a fifth of those in which that GPU copies 2 E."""
    op, kernel, inside = _elsewhere(FUSED, KERNEL, RELU_INSIDE)
    copied = Record("cuda_steps", gpu=_other().gpu).us("copy", bytes=2**31)
    two = 2 * recorded.ROWS * recorded.WIDTH * 2 / 2**31 * copied
    assert all(0.8 < saved / two < 1.2 for saved in (op - kernel, op - inside))
    return op - kernel, op - inside


def _here() -> float:
    """Percent that relu inside takes less than the op, by the stored output of an H200; as on the H100, only the LoRA
    kernel and merged take less still."""
    output = printed(NOTEBOOK, "here-layers", on="NVIDIA H200")
    here = {name: float(us) for name, us in re.findall(r"^  (\S.*?) +([\d.]+)  \(", output, re.M)}
    assert min(here, key=here.get) == "merged"
    merged, kernel, inside, op = _elsewhere(MERGED, KERNEL, RELU_INSIDE, FUSED)
    assert merged < kernel < inside < op
    assert here["LoRA kernel"] < here["one product, relu inside"] < here["the op"]
    return 100 * (1 - here["one product, relu inside"] / here["the op"])


def _other() -> Record:
    return recorded.LORA.with_part("layer", variant=KERNEL)


def _inside() -> tuple:
    op, inside = _elsewhere(FUSED, RELU_INSIDE)
    return _here(), 100 * (1 - inside / op)


def _training() -> tuple:
    eager, compiled = (recorded.row("training", name) for name in (EAGER, COMPILED))
    assert apart(eager, compiled)
    return compiled["us_p50"], eager["us_p50"]


def _fastest() -> tuple:
    """None of the others, merged aside, is as fast as these three, which do not differ."""
    rows = [_elsewhere_row(name) for name in FASTEST]
    assert not any(apart(a, b) for a, b in itertools.combinations(rows, 2))
    others = [_elsewhere_row(name) for name in (FUSED, COMPILED, ONE_PRODUCT, IN_PLACE, EAGER)]
    assert all(apart(row, other) and row["us_p50"] < other["us_p50"] for row in rows for other in others)
    return ()


def _saves_as_much() -> tuple:
    assert not apart(_elsewhere_row(AUTOTUNED), _elsewhere_row(KERNEL))
    return ()


def _way(name: str) -> tuple:
    """E; of the large layer and of the smaller one µs on the GPU, and called."""
    variant, moved = WAYS[name]
    rows = [_elsewhere_row(variant, width=width) for width in (recorded.WIDTH, SMALLER)]
    return moved, *(row[kind] for row in rows for kind in ("us_p50", "call_us"))


def _autotuned() -> tuple:
    """The rest of its line: there is none of the smaller layer."""
    assert AUTOTUNED not in set(_other().rows("layer", width=SMALLER)["variant"])
    row = _elsewhere_row(AUTOTUNED)
    return row["us_p50"], row["call_us"]


def _kernel_wins() -> tuple:
    """Percent less than the next way that keeps the adapter apart."""
    rows = {name: _elsewhere_row(name, width=SMALLER) for name, _ in WAYS.values()}
    merged, first, second, *_ = sorted(rows.values(), key=lambda row: row["us_p50"])
    assert [row["variant"] for row in (merged, first, second)] == [MERGED, KERNEL, RELU_INSIDE]
    assert apart(first, second)
    return (100 * (1 - first["us_p50"] / second["us_p50"]),)


def _seven_differ() -> tuple:
    """Percent; the slowest is one product."""
    rows = {name: _elsewhere_row(name, width=SMALLER)["us_p50"] for name, moved in WAYS.values() if moved == 7}
    assert max(rows, key=rows.get) == ONE_PRODUCT
    return (100 * (max(rows.values()) / min(rows.values()) - 1),)


def _host_decides() -> tuple:
    rows = {name: _elsewhere_row(name, width=SMALLER) for name, _ in WAYS.values()}
    assert [name for name, row in rows.items() if row["call_us"] < LEAST * row["us_p50"]] == [MERGED]
    assert rows[RELU_INSIDE]["call_us"] < rows[KERNEL]["call_us"]
    return ()


def _kept() -> tuple:
    projections = merging.projections(1e-4)
    assert abs(projections["eager"] - projections["merged"]) < 0.01
    assert abs(projections["one product"] - 1) < 0.01
    return (projections["eager"],)


def _end() -> tuple:
    return _added(), _slower()


claim(NOTEBOOK, "the two thin products need {:.1f} % of the arithmetic of x Wᵀ.", lambda: (_added(),))
claim(
    NOTEBOOK,
    "On an H200, LoRA in eager takes {:.0f} µs longer than the frozen layer with its relu. That is {:.0f} % more time "
    "for {:.1f} % more arithmetic.",
    _eager,
)
claim(
    NOTEBOOK,
    "The frozen layer moves 4 E, and LoRA 7 E more. At the copy's rate, the added bytes take {:.0f} µs, most of the "
    "difference.",
    _seven_more,
)
claim(
    NOTEBOOK,
    "On the H200, the op shortens the layer from {:.0f} to {:.0f} µs. `torch.compile` fuses the three passes too, and "
    "takes {:.0f} µs: no difference.",
    _fused,
)
claim(NOTEBOOK, "At the copy's rate, one E takes {:.0f} µs.", lambda: (e_us(1),))
claim(
    NOTEBOOK,
    "`torch.compile`, the op and one product move 7 E each, and their times show no difference. Merged takes {:.0f} "
    "µs: it is the frozen layer with another W.",
    _seven,
)
claim(
    NOTEBOOK,
    "Your kernel and *relu inside* move 2 E less than the op. On an H100, they save {:.0f} and {:.0f} µs, about the "
    "time of copying those bytes.",
    _five,
)
claim(
    NOTEBOOK,
    "*relu inside* takes {:.0f} % less time than the op in the run of section 5, and {:.0f} % less on the H100.",
    _inside,
)
claim(NOTEBOOK, "forward and backward together take {:.0f} µs, and {:.0f} in eager.", _training)
claim(NOTEBOOK, "`max-autotune` saves as much as your kernel there.", _saves_as_much)
claim(NOTEBOOK, "are the fastest in the large layer, and their GPU times show no difference.", _fastest)
claim(NOTEBOOK, "it takes {:.0f} % less GPU time than *relu inside*, the next.", _kernel_wins)
claim(NOTEBOOK, "The ways that move 7 E lie up to {:.0f} % apart, and the slowest of them, one product,", _seven_differ)
claim(NOTEBOOK, "Called from Python, every way but merging takes longer than its kernels,", _host_decides)
for name in WAYS:
    claim(NOTEBOOK, f"| {name} | {{}} | {{:.0f}} | {{:.0f}} | {{:.1f}} | {{:.0f}} |", partial(_way, name))
claim(NOTEBOOK, "| `max-autotune` | | {:.0f} | {:.0f} | | | |", _autotuned)
claim(NOTEBOOK, "For B of std 0.0001, eager and merging each keep {:.2f} of the change.", _kept)
claim(NOTEBOOK, "{:.1f} % more arithmetic took {:.0f} % more time.", _end)
