"""04, torch.compile: the story's steps eager and compiled, the recorded launches, seconds and milliseconds by turns."""

from __future__ import annotations

import torch

from claims.claim import claim
from kernels import inductor
from model.compiling import facts, graphs

NOTEBOOK = "04"


def _steps() -> tuple:
    """ms of each of the story's three steps, eager and compiled: beyond the spread."""
    found = [facts.pair(number) for number in facts.EAGER]
    assert all(compiled.high < eager.low for eager, compiled in found)
    return tuple(step.ms for both in found for step in both)


def _busy() -> tuple:
    """Of 08: ms of kernels eager, compiled; what the kernels lose, what the step loses."""
    eager, compiled = facts.pair("08")
    less, shorter = eager.busy - compiled.busy, eager.ms - compiled.ms
    assert shorter < less / 2
    return eager.busy, compiled.busy, less, shorter


def _launches() -> tuple:
    eager, compiled = facts.pair("08")
    assert compiled.busy < 0.2 * compiled.ms, "it is launch-bound"
    return compiled.launches, eager.launches


def _gradients() -> tuple:
    """Of 08: ms of the gradients of the look-ups eager and compiled, of all else but GEMMs."""
    eager, compiled = (step.parts for step in facts.pair("08"))
    gradients, rest = facts.PARTS[1:]
    assert eager[gradients] - compiled[gradients] > 0.75 * (sum(eager.values()) - sum(compiled.values()))
    return eager[gradients], compiled[gradients], eager[rest], compiled[rest]


def _outer() -> tuple:
    """Of 06: ms of kernels less, by part: GEMMs, gradients, all else."""
    eager, compiled = facts.pair("06")
    less = [eager.parts[part] - compiled.parts[part] for part in facts.PARTS]
    assert less[2] == max(less)
    assert compiled.parts[facts.PARTS[0]] > 0.9 * compiled.busy
    return eager.busy - compiled.busy, less[2], less[0], less[1]


def _gemms() -> tuple:
    compiled = facts.pair("06")[1]
    return compiled.parts[facts.PARTS[0]], compiled.busy


def _recorded_kernels() -> tuple:
    """torch 2.11, training: kernels that look up, that hash; that fill and that add a table's gradient."""
    forward, backward = facts.generated()
    look_ups = sum(kernel.launches for kernel in forward if "aten.embedding" in kernel.fused)
    hashes = [k for k in forward if "aten.remainder" in k.fused and "aten.embedding" not in k.fused]
    gradients = [k for k in backward if "aten.embedding_dense_backward" in k.fused]
    adding = sum(k.launches for k in gradients if "tl.atomic_add" in k.source)
    filling = sum(k.launches for k in gradients) - adding
    assert look_ups == adding == filling == 26
    return sum(kernel.launches for kernel in hashes), look_ups, filling, adding


def _inference(torch: str) -> tuple:
    if torch == "2.13":
        assert facts.launches(torch, "inference")["look_ups"] == 26
        assert facts.launches(torch, "inference", "min_overlap_ratio")["look_ups"] == 1
        options = ("default", "combo_kernels", "min_overlap_ratio")
    else:
        assert facts.count(torch, "inference", "min_overlap_ratio") is None
        options = ("default", "combo_kernels")
    return tuple(facts.count(torch, "inference", name) for name in options)


def _training() -> tuple:
    row = facts.launches("2.13", "training", "min_overlap_ratio")
    found = tuple(facts.count("2.13", "training", n) for n in ("default", "combo_kernels", "min_overlap_ratio", "both"))
    return *found[:3], row["look_ups"], row["gradients"], found[3]


def _many_logits() -> tuple:
    logits = torch.randn(65536)
    with graphs.quiet():
        sources = [inductor.triton_source(function, logits) for function in (graphs.bounded, graphs.bounded_where)]
    launches = {sum(inductor.count(source).values()) for source in sources}
    (one,) = launches
    return len(logits), one


def _pays(number: str) -> tuple:
    found = facts.pays(number)
    assert found.low > 0, "it is beyond the spread"
    steps = [int(float(f"{found.steps(seconds):.2g}")) for seconds in (found.cold, found.warm)]
    return found.cold, found.warm, found.saved, found.low, found.high, *steps


claim(
    NOTEBOOK,
    "Step 04 takes {:.2f} ms in eager and {:.2f} compiled, step 06 {:.1f} and {:.1f}, step 08 {:.2f} and {:.2f}.",
    _steps,
)
claim(
    NOTEBOOK,
    "In step 08 kernels run for {:.2f} ms in eager and for {:.2f} compiled: {:.2f} ms less, and the step is only "
    "{:.2f} ms shorter.",
    _busy,
)
claim(
    NOTEBOOK,
    "It still launches, {:.0f} times for {:.0f}, and around the launches it runs PyTorch's Python.",
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
    "Step 06 loses {:.2f} ms of kernels: {:.2f} of all else, by fusion and by faster kernels, {:.2f} because cuBLAS "
    "runs another kernel for a GEMM, and {:.2f} of gradients of the look-ups.",
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
    "`min_overlap_ratio`.",
    lambda: _inference("2.13"),
)
claim(
    NOTEBOOK,
    "With torch 2.11 it has {:.0f} by default and {:.0f} with `combo_kernels`; the other option does not exist there.",
    lambda: _inference("2.11"),
)
claim(
    NOTEBOOK,
    "In training (2.13) {:.0f} launches become {:.0f} with `combo_kernels` and {:.0f} with `min_overlap_ratio`, which "
    "leaves {:.0f} look-ups and {:.0f} kernels for gradients; with both options {:.0f} are left.",
    _training,
)
claim(
    NOTEBOOK,
    "The first step of 08 takes {:.1f} s longer than eager's cold and {:.1f} s warm, and each later one is {:.2f} ms "
    "shorter (spread {:.2f} to {:.2f}): it pays after some {:,} steps, or {:,}.",
    lambda: _pays("08"),
)
claim(
    NOTEBOOK,
    "Step 06 takes {:.1f} s longer cold and {:.1f} s warm and saves {:.2f} ms (spread {:.2f} to {:.2f}): {:,} "
    "steps, or {:,}.",
    lambda: _pays("06"),
)
claim(NOTEBOOK, "With {:,} logits there are {:.0f} launches either way,", _many_logits)
