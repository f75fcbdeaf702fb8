"""12, LoRA: its layers, steps and adapters as recorded, the epilogue's own record, and what merging keeps."""

from __future__ import annotations

from claims.claim import claim
from model.adapters import facts, merging
from model.adapters.facts import at, call_us, gpu_us, host_us

NOTEBOOK = "12"
TRITON, CUDA, COMPILED = "fused, triton", "fused, cuda", "torch.compile"
SMALL, LARGE, LARGEST = (64, 1024), (8192, 4096), (32768, 4096)


def _epilogue() -> tuple:
    eager, compiled, triton = (facts.epilogue(name)["us_p50"] for name in ("eager", "torch.compile", "triton"))
    assert abs(triton / compiled - 1) < 0.01
    return eager, compiled, triton


def _layer() -> tuple:
    """µs on the GPU: eager's layer, its passes, fused, compiled, the frozen layer."""
    eager, triton, compiled, frozen = (
        gpu_us("layer", name, **at(LARGE)) for name in ("eager", TRITON, COMPILED, "frozen layer")
    )
    passes = sum(gpu_us("pieces", name) for name in ("scale", "add", "activate"))
    assert frozen < min(triton, compiled) < eager, "fusing saves passes, and LoRA is not free"
    return eager, passes, triton, compiled, frozen


def _calls() -> tuple:
    ours, eager = facts.op_call_us("triton"), facts.op_call_us("eager")
    assert ours < eager / 3
    return ours, eager, facts.op_call_us("x + 1")


def _small() -> tuple:
    found = [
        clock("layer", name, **at(SMALL)) for name in ("eager", COMPILED, TRITON) for clock in (gpu_us, host_us)
    ]
    assert all(gpu < host for gpu, host in zip(found[::2], found[1::2], strict=True)), "the host is the slower one"
    return tuple(found)


def _largest() -> tuple:
    names = "eager", COMPILED, TRITON, CUDA
    found = [gpu_us("layer", name, **at(LARGEST)) for name in names]
    assert all(us > host_us("layer", name, **at(LARGEST)) for name, us in zip(names, found, strict=True))
    assert max(found[1:]) < found[0]
    return tuple(found)


def _backwards() -> tuple:
    def us(implementation: str, activation: str) -> float:
        return facts.epilogue(implementation, "backward", activation=activation)["us_p50"]

    for dtype in ("float32", "bfloat16"):
        for activation in ("relu", "sigmoid", "gelu"):
            found = {
                name: facts.epilogue(name, "backward", activation=activation, dtype=dtype)["us_p50"]
                for name in ("eager", COMPILED, "triton", "cuda")
            }
            assert (min(found, key=found.get) == "cuda") == (activation != "gelu")
    relu, gelu = ((us(COMPILED, name), us("triton", name)) for name in ("relu", "gelu"))
    sigmoid = us("triton", "sigmoid"), us(COMPILED, "sigmoid")
    assert relu[0] < relu[1]
    assert gelu[0] < gelu[1]
    assert sigmoid[0] < sigmoid[1]
    return *relu, *gelu, *sigmoid


def _training() -> tuple:
    return tuple(gpu_us("training", name, **at(LARGE)) for name in ("eager", COMPILED, TRITON, CUDA))


def _training_calls() -> tuple:
    """Triton's calls, and the compiled ones, in times of eager's, for each shape."""
    return tuple(
        call_us("training", name, **at(shape)) / call_us("training", "eager", **at(shape))
        for name in (TRITON, COMPILED)
        for shape in facts.SHAPES
    )


def _model() -> tuple:
    names = "all trained", "LoRA, eager", "LoRA, fused, triton", "LoRA, torch.compile"
    return tuple(call_us("model", name) for name in names)


def _model_kernels() -> tuple:
    row = facts.one("model", "LoRA, eager")
    assert row["kernel_us"] < row["call_us"] / 2, "it is launch-bound"
    return row["kernel_us"], gpu_us("model", "LoRA, eager"), gpu_us("model", "LoRA, fused, triton")


def _kept() -> tuple:
    found = merging.kept_of(1e-4)
    both = [(found.error[way], found.projection[way]) for way in merging.WAYS]
    assert found.projection["one product"] > 0.95 > 0.5 > found.projection["beside"] > found.projection["merged"]
    return found.change, *(number for pair in both for number in pair)


def _frozen() -> tuple:
    return (merging.kept_of(1e-4).frozen,)


def _one_product() -> tuple:
    return tuple(gpu_us("layer", name, **at(LARGE)) for name in ("one product", TRITON, "merged"))


def _adapters() -> tuple:
    gathered, masked, one = (facts.one("adapters", name) for name in ("gathered", "all, masked", "one adapter"))
    assert masked["peak_bytes"] < gathered["peak_bytes"] / 4
    assert one["us_p50"] < masked["us_p50"] < gathered["us_p50"], "a mask is faster than copies"
    return (
        gathered["us_p50"], gathered["peak_bytes"] / 1e6, masked["us_p50"], masked["peak_bytes"] / 1e6, one["us_p50"],
    )  # fmt: skip


def _memory() -> tuple:
    """GB of 100 merged weights, MB of 100 adapters."""
    return 100 * 4096**2 * 2 / 1e9, 100 * 2 * 4096 * 16 * 2 / 1e6


claim(
    NOTEBOOK,
    "eager's four operators take {:.1f} µs on the GPU, `torch.compile`'s kernel {:.1f} µs, our Triton kernel "
    "{:.1f} µs, which is no difference.",
    _epilogue,
)
claim(
    NOTEBOOK,
    "On the GPU eager's layer takes {:.0f} µs, of which its three passes are {:.0f} µs; fused with Triton it takes "
    "{:.0f} µs, compiled {:.0f} µs, the frozen layer alone {:.0f} µs.",
    _layer,
)
claim(
    NOTEBOOK,
    "A call of our op takes {:.1f} µs on the host, eager's four operators {:.1f} µs, a single `x + 1` {:.1f} µs.",
    _calls,
)
claim(
    NOTEBOOK,
    "At 64 rows of 1024 the layer takes {:.1f} µs on the GPU and {:.1f} µs on the host in eager, {:.1f} µs and "
    "{:.1f} µs compiled, {:.1f} µs and {:.1f} µs fused with Triton. The host is the slower one for all three",
    _small,
)
claim(
    NOTEBOOK,
    "At 32768 rows of 4096 it is the GPU: {:.0f} µs in eager, {:.0f} µs compiled, fused {:.0f} µs with Triton and "
    "{:.0f} µs with CUDA.",
    _largest,
)
claim(
    NOTEBOOK,
    "With a ReLU, our layer's, `torch.compile` takes {:.1f} µs in bfloat16 and our Triton kernel {:.1f} µs; with GELU "
    "{:.1f} µs and {:.1f} µs. With a sigmoid ours takes {:.1f} µs, the compiler's {:.1f} µs. Our CUDA kernel is the "
    "fastest but for GELU.",
    _backwards,
)
claim(
    NOTEBOOK,
    "At 8192 rows of 4096, forward and backward take {:.0f} µs on the GPU in eager, {:.0f} µs compiled, {:.0f} µs "
    "fused with Triton and {:.0f} µs with CUDA.",
    _training,
)
claim(
    NOTEBOOK,
    "fused with Triton {:.2f} ×, {:.2f} ×, {:.2f} × and {:.2f} ×; compiled {:.2f} ×, {:.2f} ×, {:.2f} × and {:.2f} ×.",
    _training_calls,
)
claim(
    NOTEBOOK,
    "From step to step it is {:.0f} µs with everything trained, {:.0f} µs with LoRA in eager, {:.0f} µs fused with "
    "Triton and {:.0f} µs compiled.",
    _model,
)
claim(
    NOTEBOOK,
    "The kernels of eager's LoRA step take {:.0f} µs: it is launch-bound. As one CUDA graph it takes {:.0f} µs in "
    "eager and {:.0f} µs fused with Triton.",
    _model_kernels,
)
claim(
    NOTEBOOK,
    "For B of std 0.0001 the change is {:.3f} % of W. Beside, its error is {:.0f} % and the projection {:.2f}; merged "
    "{:.0f} % and {:.2f}; as one product {:.0f} % and {:.2f}.",
    _kept,
)
claim(NOTEBOOK, "Rounding the frozen layer's output alone is an error of {:.0f} %", _frozen)
claim(
    NOTEBOOK,
    "at 8192 rows of 4096 takes {:.0f} µs, beside it fused with Triton {:.0f} µs, merged {:.0f} µs.",
    _one_product,
)
claim(NOTEBOOK, "100 merged weights are {:.1f} GB, 100 adapters {:.0f} MB.", _memory)
claim(NOTEBOOK, "`A[adapter]` has 4096 · 4096 · 16 numbers, 537 MB, and so has `B[adapter]`.")
claim(
    NOTEBOOK,
    "Gathered takes {:.0f} µs and {:.0f} MB beside what went in; all adapters with a mask {:.0f} µs and {:.0f} MB, "
    "although each row meets 100 adapters for one; one adapter for all rows {:.0f} µs.",
    _adapters,
)
