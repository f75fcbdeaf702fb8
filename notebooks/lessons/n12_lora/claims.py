"""12, LoRA: its layers, steps and adapters as recorded, the epilogue's own record, and what merging keeps."""

from __future__ import annotations

from itertools import combinations

from lessons.n12_lora import merging, recorded
from lessons.n12_lora.recorded import at, call_us, gpu_us, host_us
from lessons.shared import launches
from lessons.shared.claim import claim
from model.profiling import TRACES
from model.profiling.trace import GPU, read

NOTEBOOK = "12"
TRITON, CUDA, COMPILED = "fused, triton", "fused, cuda", "torch.compile"
SMALL, MIDDLE, LARGE, LARGEST = recorded.SHAPES


def _overlap(part: str, first: str, second: str, shape: tuple[int, int] | None = None, calls: bool = False) -> bool:
    """Whether the spreads of the two meet: of the time on the GPU, or from call to call."""
    a, b = (recorded.row(part, name, **(at(shape) if shape else {})) for name in (first, second))
    low, high = ("call_us_low", "call_us_high") if calls else ("us_p20", "us_p80")
    return a[low] <= b[high] and b[low] <= a[high]


def _layer() -> tuple:
    """µs on the GPU: eager's layer, the frozen layer, fused, compiled; LoRA, % of the frozen; the thin products."""
    eager, frozen, triton, compiled = (
        gpu_us("layer", name, **at(LARGE)) for name in ("eager", "frozen layer", TRITON, COMPILED)
    )
    assert _overlap("layer", TRITON, COMPILED, LARGE)
    thin = [gpu_us("pieces", name) for name in ("x A", "(x A) B")]
    assert 0.6 < sum(thin) / (triton - frozen) < 1
    return eager, frozen, 100 * (eager / frozen - 1), triton, compiled, 100 * (triton / frozen - 1), *thin


def _pieces() -> tuple:
    found = scale, add, activate, epilogue = [
        gpu_us("pieces", name) for name in ("scale", "add", "activate", "epilogue, triton")
    ]
    assert abs(epilogue / add - 1) < 0.01
    saved = gpu_us("layer", "eager", **at(LARGE)) - gpu_us("layer", TRITON, **at(LARGE))
    assert abs(saved / (scale + activate) - 1) < 0.05
    assert min(scale, activate) > 1.03 * recorded.saved_us(*LARGE, passes=2), "below a copy's rate"
    return tuple(found)


def _calls() -> tuple:
    return recorded.op_call_us("x + 1"), recorded.op_call_us("triton")


def _small() -> tuple:
    names = recorded.LORA.rows("layer", **at(SMALL))["variant"]
    assert all(gpu_us("layer", name, **at(SMALL)) < host_us("layer", name, **at(SMALL)) for name in names)
    return (gpu_us("layer", "eager", **at(SMALL)),)


def _small_compiled() -> tuple:
    return (host_us("layer", COMPILED, **at(SMALL)) / host_us("layer", "eager", **at(SMALL)),)


def _clocks_disagree() -> tuple:
    names = "eager", COMPILED, TRITON
    gpu, call = ([clock("layer", name, **at(MIDDLE)) for name in names] for clock in (gpu_us, call_us))
    assert gpu[1] < gpu[0] < call[0] < call[1]
    assert not any(_overlap("layer", "eager", TRITON, MIDDLE, calls) for calls in (False, True))
    assert gpu[2] < gpu[0]
    assert call[2] < call[0]
    return *gpu[:2], *call[:2], gpu[2], call[2]


def _wide() -> tuple:
    for shape in (LARGE, LARGEST):
        names = recorded.LORA.rows("layer", **at(shape))["variant"]
        assert all(gpu_us("layer", name, **at(shape)) > host_us("layer", name, **at(shape)) for name in names)
    return ()


def _backwards() -> tuple:
    names = "eager", COMPILED, "triton", "cuda"
    for dtype in ("float32", "bfloat16"):
        for activation in ("relu", "sigmoid", "gelu"):
            found = {
                name: recorded.epilogue(name, "backward", activation=activation, dtype=dtype)["us_p50"]
                for name in names
            }
            assert (min(found, key=found.get) == "cuda") == (activation != "gelu")
    triton, compiled = (recorded.epilogue(name, "backward") for name in ("triton", COMPILED))
    assert compiled["us_p80"] < triton["us_p20"]
    return triton["us_p50"], compiled["us_p50"]


def _training() -> tuple:
    """µs that Triton takes off forward and backward, and off the forward."""
    assert all(_overlap("training", *pair, LARGE) for pair in combinations((COMPILED, TRITON, CUDA), 2))
    return tuple(
        gpu_us(part, "eager", **at(LARGE)) - gpu_us(part, TRITON, **at(LARGE)) for part in ("training", "layer")
    )


def _training_calls() -> tuple:
    """In times of eager's: the compiled calls at the first two shapes, Triton's at the last."""
    for shape in recorded.SHAPES:
        first_two = shape in recorded.SHAPES[:2]
        assert _overlap("training", "eager", TRITON, shape, calls=True) == (shape != LARGEST)
        for name in ("eager", COMPILED, TRITON) if first_two else ():
            assert gpu_us("training", name, **at(shape)) < host_us("training", name, **at(shape))
        slower = call_us("training", COMPILED, **at(shape)) > call_us("training", "eager", **at(shape))
        assert (slower and not _overlap("training", "eager", COMPILED, shape, calls=True)) == first_two
    compiled, triton = (
        [
            call_us("training", name, **at(shape)) / call_us("training", "eager", **at(shape))
            for shape in recorded.SHAPES
        ]
        for name in (COMPILED, TRITON)
    )
    assert max(triton) < 1
    return *compiled[:2], triton[-1]


def _all_trained() -> tuple:
    row = recorded.row("model", "all trained")
    return row["call_us"], row["kernel_us"], recorded.row("model", "LoRA, eager")["kernel_us"]


def _frozen_tables() -> tuple:
    """The tables' gradients: how many kernels, their µs; µs of kernels that LoRA spares; both steps as graphs."""
    trained, eager = (recorded.row("model", name) for name in ("all trained", "LoRA, eager"))
    assert _overlap("model", "all trained", "LoRA, eager", calls=True)
    assert all(row["kernel_us"] < row["call_us"] / 1.9 for row in (trained, eager)), "they are launch-bound"
    trace = read(TRACES / launches.HOST_BOUND)
    work = trace.of(*GPU)
    tables = work[work["name"].str.contains("embedding_backward_feature_kernel")]
    count, us = (total / len(trace.steps) for total in (len(tables), tables["dur"].sum()))
    assert us > recorded.spared_us()
    return count, us, recorded.spared_us(), eager["us_p50"], trained["us_p50"]


def _model() -> tuple:
    names = "LoRA, eager", "LoRA, fused, triton", "LoRA, fused, cuda"
    assert all(_overlap("model", *pair, calls=True) for pair in combinations(names, 2))
    compiled = "LoRA, torch.compile"
    assert not any(_overlap("model", compiled, name, calls=True) for name in names)
    graphs = [gpu_us("model", name) for name in (*names, compiled)]
    assert max(graphs[1:3]) < graphs[0]
    assert graphs[3] < 0.7 * graphs[0]
    assert call_us("model", compiled) < min(call_us("model", name) for name in names)
    return (graphs[0] - min(graphs[1:3]),)


def _kept() -> tuple:
    found = merging.kept_of(1e-4)
    assert found.projection["one product"] > 0.95 > 0.5 > found.projection["beside"] > found.projection["merged"]
    assert max(found.error.values()) < 1.1 * found.frozen
    return found.change, *(found.projection[way] for way in merging.WAYS), found.frozen


def _one_product() -> tuple:
    assert _overlap("layer", "merged", "frozen layer", LARGE)
    return tuple(gpu_us("layer", name, **at(LARGE)) for name in ("one product", "merged"))


def _adapters() -> tuple:
    names = "gathered", "all, masked", "one by one"
    gathered, masked, in_turn = (recorded.row("adapters", name) for name in names)
    copy = 4096 * 4096 * 16 * 2
    assert copy < gathered["peak_bytes"] < 1.2 * copy, "one copy at a time"
    # Each adapter reads x, writes y, and adds it: five E at the copy's rate are most of it.
    assert 0.5 * in_turn["us_p50"] < 100 * recorded.saved_us(4096, 4096, passes=5) < in_turn["us_p50"]
    assert masked["peak_bytes"] < gathered["peak_bytes"] / 4
    assert masked["us_p50"] < gathered["us_p50"] < in_turn["us_p50"], "a mask is faster than copies"
    return gathered["peak_bytes"] / 1e6, in_turn["us_p50"], masked["us_p50"], masked["peak_bytes"] / 1e6


def _groups() -> tuple:
    groups = gpu_us("adapters", "sorted, groups")
    assert gpu_us("adapters", "all, masked") < groups < gpu_us("adapters", "gathered")
    return (groups,)


def _memory() -> tuple:
    """GB of 100 merged weights, MB of 100 adapters."""
    return 100 * 4096**2 * 2 / 1e9, 100 * 2 * 4096 * 16 * 2 / 1e6


claim(
    NOTEBOOK,
    "On the GPU eager's layer takes {:.0f} µs, the frozen layer alone {:.0f} µs: LoRA costs {:.0f} %. Fused with "
    "Triton the layer takes {:.0f} µs, compiled {:.0f} µs, no difference; LoRA still costs {:.0f} %. "
    "Most of that is the thin products, {:.1f} µs and {:.1f} µs.",
    _layer,
)
claim(
    NOTEBOOK,
    "Each alone, scale takes {:.1f} µs, add {:.1f} µs, activate {:.1f} µs, and our epilogue {:.1f} µs: as long "
    "as add, so what scale and activate took is saved.",
    _pieces,
)
claim(NOTEBOOK, "On 64 × 64 numbers `x + 1` takes the host {:.1f} µs, a call of our op {:.1f} µs.", _calls)
claim(
    NOTEBOOK,
    "At 64 rows of 1024 the host is the slower one: on the GPU eager's layer takes {:.1f} µs.",
    _small,
)
claim(NOTEBOOK, "The compiled call costs the host {:.1f} × eager's.", _small_compiled)
claim(
    NOTEBOOK,
    "At 8192 rows of 1024 the clocks disagree: `torch.compile` shortens the GPU's time from {:.1f} µs to {:.1f} µs, "
    "and lengthens the time from call to call from {:.1f} µs to {:.1f} µs. Our epilogue shortens "
    "both, to {:.1f} µs and {:.1f} µs.",
    _clocks_disagree,
)
claim(NOTEBOOK, "At 4096 columns the GPU is the slower one.", _wide)
claim(
    NOTEBOOK,
    "with a ReLU, our layer's, it takes {:.1f} µs in bfloat16, `torch.compile` {:.1f} µs. Our CUDA kernel is the "
    "fastest but for GELU.",
    _backwards,
)
claim(
    NOTEBOOK,
    "At 8192 rows of 4096 Triton saves {:.0f} µs of GPU time, of which the forward alone saves {:.0f} µs.",
    _training,
)
claim(
    NOTEBOOK,
    "From call to call `torch.compile` loses at the first two shapes, where the host is the slower one: it takes "
    "{:.2f} × and {:.2f} × eager's time. Fused with Triton does not lose, but only at the last shape does it gain more "
    "than the spread: {:.2f} ×.",
    _training_calls,
)
claim(
    NOTEBOOK,
    "takes {:.0f} µs with everything trained; its kernels take {:.0f} µs. With LoRA in eager they take {:.0f} µs.",
    _all_trained,
)
claim(
    NOTEBOOK,
    "the frozen tables' gradients are gone: in notebook 02's trace {:.0f} kernels, {:.0f} µs. From step to step {:.0f} "
    "µs less are within the spread, because both steps are launch-bound. As one CUDA graph they show: {:.0f} µs, not "
    "{:.0f} µs.",
    _frozen_tables,
)
claim(
    NOTEBOOK,
    "no more than the spread from step to step, and as a graph {:.0f} µs at most. `torch.compile` wins: it fuses the "
    "rest of the step, too.",
    _model,
)
claim(
    NOTEBOOK,
    "For B of std 0.0001 the change is {:.3f} % of W. Its projection is {:.2f} beside, {:.2f} merged and {:.2f} as one "
    "product. Rounding the frozen layer's output alone is an error of {:.0f} %, so only the projection tells",
    _kept,
)
claim(
    NOTEBOOK,
    "at 8192 rows of 4096 takes {:.0f} µs on the GPU; merged it takes {:.0f} µs, as the frozen layer does.",
    _one_product,
)
claim(NOTEBOOK, "100 merged weights are {:.1f} GB, 100 adapters {:.0f} MB.", _memory)
claim(NOTEBOOK, "`A[adapter]` has 4096 · 4096 · 16 numbers, 537 MB, and so has `B[adapter]`.")
claim(
    NOTEBOOK,
    "Gathered takes {:.0f} MB, not twice as much, because the first copy is freed before the second is made. One by "
    "one, each adapter's products read x and write y again: {:.0f} µs. All adapters with a mask are the fastest, in "
    "{:.0f} µs and {:.0f} MB,",
    _adapters,
)
claim(NOTEBOOK, "multiplies each row by its own adapter only, yet takes {:.0f} µs.", _groups)
