"""10, CUDA kernels: what `python -m model.cuda_steps --count` and `--save` wrote, and add_mul_activation's record."""

from __future__ import annotations

from claims.claim import claim
from kernels.measure.records import recorded
from model.cuda_steps import facts
from model.cuda_steps.counting import VARIANTS
from model.cuda_steps.facts import a_number, kernel, one, share, us

NOTEBOOK = "10"


def _steps() -> tuple:
    scalar, strided, coalesced, wide = (us("step", name) for name in ("scalar", "strided", "coalesced", "wide"))
    assert facts.apart(one("step", name="strided"), one("step", name="coalesced"))
    assert strided > coalesced
    assert wide < 1.03 * coalesced
    return scalar, strided, coalesced, wide


def _wide() -> tuple:
    for dtype in ("float32", "bfloat16"):
        for name in VARIANTS:
            assert facts.compiled()["accesses"][f"{name}_{dtype}"] == {"ld": {"16": 3}, "st": {"16": 1}}
    return ()


def _more() -> tuple:
    """Instructions that a thread executes beyond the base's."""
    base = kernel("base_float32")["executed"]
    return (kernel("remainder_float32")["executed"] - base,)


def _bits() -> tuple:
    assert kernel("bits64_float32")["registers"] <= kernel("base_float32")["registers"]
    return (kernel("bits64_float32")["executed"] - kernel("base_float32")["executed"],)


def _exact() -> tuple:
    found = kernel("expf_float32")
    return found["standing"], found["executed"], a_number("expf_float32"), a_number("base_float32")


def _on_gpu() -> tuple:
    """A block of 256 threads has 8 warps, and takes 1024 numbers."""
    warps = 65536 * 512 / 128
    found = [facts.on_gpu(f"{name}_float32", "smsp__inst_executed.sum") / warps for name in ("base", "expf")]
    assert abs(found[0] - kernel("base_float32")["executed"]) < 0.5, "the shortest way is not the one that is taken"
    return tuple(found)


def _float32() -> tuple:
    times = {name: us("variant", name, "float32") for name in VARIANTS}
    assert max(times.values()) < 1.03 * times["base"]
    return times["base"], max(times.values())


def _bfloat16() -> tuple:
    return tuple(us("variant", name, "bfloat16") for name in ("base", "remainder", "bits64", "expf"))


def _threads() -> tuple:
    return tuple(us("variant", "base", "float32", threads) for threads in (64, 1024))


def _two_compilers() -> tuple:
    ours, theirs = kernel("base_float32"), kernel("triton_float32")
    for found in (ours, theirs):
        kinds = found["kinds"]
        assert (kinds["16-byte loads"], kinds["16-byte stores"], kinds["2^x"], kinds["1/x"]) == (3, 1, 4, 4)
    return ours["executed"], theirs["executed"]


def _minus() -> tuple:
    signs = sum("FADD" in code and "RZ, -R" in code for code in kernel("triton_float32")["way"])
    assert signs == 4
    assert any("-1.44" in code for code in kernel("base_float32")["way"])
    return ()


def _sigmoid() -> tuple:
    found = recorded("add_mul_activation")
    labels = {"part": "bandwidth", "form": "functional", "rows": 65536, "dtype": "float32", "activation": "sigmoid"}
    for name, value in labels.items():
        found = found[found[name] == value]
    times = dict(zip(found["implementation"], found["us_p50"], strict=True))
    return tuple(times[name] for name in ("cuda", "triton", "torch.compile", "eager"))


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said(
    "A number a thread takes {:.1f} µs, 16 in a row {:.1f} µs, 16 a block's width apart {:.1f} µs, and four at a time "
    "{:.1f} µs.",
    _steps,
)
said("The wide kernel runs at {:.0f} % of the rate of PyTorch's copy.", lambda: (share(one("step", name="wide")),))
said("All load and store 16 bytes a lane.", _wide)
said("`%` is no function call: {} more instructions for 4 numbers.", _more)
said("64 bits add {} and take no register more.", _bits)
said("there stand {} instructions, of which {} execute: {:.1f} a number in place of {:.1f}.", _exact)
said("{:.0f} instructions a warp for the base, {:.0f} with `expf`.", _on_gpu)
said("In float32 the base takes {:.1f} µs and the slowest of the variants {:.1f} µs", _float32)
said(
    "In bfloat16, half the bytes, the base takes {:.1f} µs, `%` {:.1f} µs, 64 bits {:.1f} µs and `expf` {:.1f} µs.",
    _bfloat16,
)
said("With 64 threads a block float32 takes {:.1f} µs, with 1024 {:.1f} µs.", _threads)
said("nvcc's thread executes {} instructions for four numbers, Triton's {}.", _two_compilers)
said("Triton spends four more on the minus of e⁻ᶻ, which nvcc puts into a constant.", _minus)
said("In Triton's {} that stand there", lambda: (kernel("triton_float32")["standing"],))
said(
    "sigmoid takes {:.1f} µs by CUDA, {:.1f} µs by Triton, {:.1f} µs by `torch.compile` and {:.0f} µs in eager "
    "PyTorch.",
    _sigmoid,
)
