"""04, torch.compile: three models' training steps, the recorded launches, seconds and milliseconds by turns."""

from __future__ import annotations

from lessons.n04_torch_compile import recorded
from lessons.shared.claim import claim

NOTEBOOK = "04"


def _steps() -> tuple:
    """ms of a step of small, main and outer, eager and compiled: beyond the spread."""
    found = [recorded.pair(model) for model in ("small", "main", "outer")]
    assert all(compiled.high < eager.low for eager, compiled in found)
    return tuple(step.ms for both in found for step in both)


def _busy() -> tuple:
    """main: ms of kernels eager, compiled; what the kernels lose, what the step loses."""
    eager, compiled = recorded.pair("main")
    less, shorter = eager.busy - compiled.busy, eager.ms - compiled.ms
    assert shorter < less / 2
    return eager.busy, compiled.busy, less, shorter


def _launches() -> tuple:
    eager, compiled = recorded.pair("main")
    assert compiled.busy < 0.2 * compiled.ms, "it is launch-bound"
    return compiled.launches, eager.launches


def _gradients() -> tuple:
    """main: ms of the look-ups' gradients, eager and compiled; of all else but GEMMs, eager and compiled."""
    eager, compiled = (step.parts for step in recorded.pair("main"))
    gradients, rest = recorded.PARTS[1:]
    assert eager[gradients] - compiled[gradients] > 0.75 * (sum(eager.values()) - sum(compiled.values()))
    return eager[gradients], compiled[gradients], eager[rest], compiled[rest]


def _outer() -> tuple:
    """outer: how many ms of kernels less: in all, of GEMMs, of gradients, of all else."""
    eager, compiled = recorded.pair("outer")
    less = [eager.parts[part] - compiled.parts[part] for part in recorded.PARTS]
    assert less[2] == max(less)
    assert compiled.parts[recorded.PARTS[0]] > 0.9 * compiled.busy
    return eager.busy - compiled.busy, *less


def _gemms() -> tuple:
    compiled = recorded.pair("outer")[1]
    return compiled.parts[recorded.PARTS[0]], compiled.busy


def _recorded_kernels() -> tuple:
    """torch 2.11, training: kernels that look up, that hash; that fill and that add a table's gradient."""
    forward, backward = recorded.generated()
    look_ups = sum(kernel.launches for kernel in forward if "aten.embedding" in kernel.fused)
    hashes = [k for k in forward if "aten.remainder" in k.fused and "aten.embedding" not in k.fused]
    gradients = [k for k in backward if "aten.embedding_dense_backward" in k.fused]
    adding = sum(k.launches for k in gradients if "tl.atomic_add" in k.source)
    filling = sum(k.launches for k in gradients) - adding
    assert look_ups == adding == filling == 26
    return sum(kernel.launches for kernel in hashes), look_ups, filling, adding


def _inference() -> tuple:
    assert recorded.launches("2.13", "inference")["look_ups"] == 26
    assert recorded.launches("2.13", "inference", "min_overlap_ratio")["look_ups"] == 1
    assert recorded.count("2.11", "inference", "min_overlap_ratio") is None
    names = "default", "combo_kernels", "min_overlap_ratio"
    return tuple(recorded.count("2.13", "inference", name) for name in names)


def _training() -> tuple:
    row = recorded.launches("2.13", "training", "min_overlap_ratio")
    names = "default", "combo_kernels", "min_overlap_ratio", "both"
    found = tuple(recorded.count("2.13", "training", name) for name in names)
    return *found[:3], row["look_ups"], row["gradients"], found[3]


def _many_logits() -> tuple:
    rows = [recorded.launches("2.13", what) for what in ("bounded", "bounded_where")]
    (logits,), (one,) = ({row["logits"] for row in rows}, {sum(row["launches"].values()) for row in rows})
    return logits, one


def _pays(model: str) -> tuple:
    found = recorded.pays(model)
    assert found.low > 0, "it is beyond the spread"
    steps = [int(float(f"{found.steps(seconds):.2g}")) for seconds in (found.cold, found.warm)]
    return found.cold, found.warm, found.saved, found.low, found.high, *steps


claim(
    NOTEBOOK,
    "A step of `small` takes {:.2f} ms in eager and {:.2f} compiled, of `main` {:.2f} and {:.2f}, of `outer` {:.1f} "
    "and {:.1f}.",
    _steps,
)
claim(
    NOTEBOOK,
    "In `main` kernels run for {:.2f} ms in eager and for {:.2f} compiled: {:.2f} ms less, and the step is only "
    "{:.2f} ms shorter.",
    _busy,
)
claim(
    NOTEBOOK,
    "It launches {:.0f} kernels, in eager {:.0f}, and between them runs PyTorch's Python.",
    _launches,
)
claim(
    NOTEBOOK,
    "The gradients of the look-ups took {:.2f} ms and now take {:.2f}; all other kernels that are no GEMM took {:.2f} "
    "and now take {:.2f}.",
    _gradients,
)
claim(
    NOTEBOOK,
    "In `outer` kernels take {:.2f} ms less: GEMMs {:.2f}, since cuBLAS runs another kernel for one of them, the "
    "gradients of the look-ups {:.2f}, and all else {:.2f}, by fusion and by faster kernels.",
    _outer,
)
claim(NOTEBOOK, "GEMMs are {:.1f} of the {:.1f} ms that are left.", _gemms)
claim(
    NOTEBOOK,
    "Recorded from torch 2.11: {:.0f} kernels hash and {:.0f} look up; in the backward {:.0f} fill a table's gradient "
    "with 0 and {:.0f} add to it.",
    _recorded_kernels,
)
claim(
    NOTEBOOK,
    "With torch 2.13 an inference has {:.0f} launches by default, {:.0f} with `combo_kernels`, {:.0f} with "
    "`min_overlap_ratio`, which torch 2.11 does not have.",
    _inference,
)
claim(
    NOTEBOOK,
    "In training (2.13) {:.0f} launches become {:.0f} with `combo_kernels` and {:.0f} with `min_overlap_ratio`, which "
    "leaves {:.0f} look-ups and {:.0f} kernels for gradients; with both options {:.0f} are left.",
    _training,
)
claim(
    NOTEBOOK,
    "Compiled, the first step of `main` takes {:.1f} s longer than in eager when cold and {:.1f} s when warm, and each "
    "later one is {:.2f} ms shorter (spread {:.2f} to {:.2f}): it pays after some {:,} steps, or {:,}.",
    lambda: _pays("main"),
)
claim(
    NOTEBOOK,
    "That of `outer` takes {:.1f} s longer cold and {:.1f} s warm, and each later one is {:.2f} ms shorter (spread "
    "{:.2f} to {:.2f}): {:,} steps, or {:,}.",
    lambda: _pays("outer"),
)
claim(NOTEBOOK, "With {:,} logits there are {:.0f} launches either way,", _many_logits)
