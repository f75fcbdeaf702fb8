"""kernels/device/tf32.py rounds to the nearest; tests/cuda_on_host/tensor_cores.cu asks tf32.cuh the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.check.contract import DEVICE
from kernels.check.tf32 import rounded

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
tf32 = pytest.importorskip("kernels.device.tf32")

ROOT = Path(__file__).resolve().parent.parent
# In a process of its own, without the interpreter: {architecture: the lines of PTX that round}.
COMPILE = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels.ops.fused_mlp.triton_kernel import rounding_kernel

found = {}
for arch in (80, 89, 90, 120):
    source = ASTSource(
        fn=rounding_kernel, constexprs={"WIDTHS": "16-16", "BLOCK": 128},
        signature={"packed_ptr": "*fp32", "rounded_ptr": "*fp32", "WIDTHS": "constexpr", "BLOCK": "constexpr"},
    )
    ptx = triton.compile(source, target=GPUTarget("cuda", arch, 32)).asm["ptx"].splitlines()
    found[arch] = sorted({line.split()[0] for line in ptx if line.lstrip().startswith(("cvt.rn.tf32", "fma.rn.f32"))})
print(json.dumps(found))
"""


@triton.jit
def _kernel(x_ptr, rounded_ptr, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(rounded_ptr + place, tf32.rounded(tl.load(x_ptr + place), PRECISION))


def run(x: torch.Tensor, precision: str = "tf32") -> torch.Tensor:
    """x rounded, of which there are a power of two."""
    out = torch.empty_like(x)
    _kernel[(1,)](x, out, PRECISION=precision, BLOCK=len(x))
    return out


def operand(x: torch.Tensor) -> torch.Tensor:
    """What products read of float32 x rounded: in the interpreter all of it, by tensor cores the upper 19 bits."""
    out = run(x)
    return (out.view(torch.int32) & -0x2000).view(torch.float32) if x.is_cuda else out


def of_bits(*bits: int) -> torch.Tensor:
    """float32 numbers."""
    return torch.tensor([b - (b >> 31 << 32) for b in bits], dtype=torch.int32, device=DEVICE).view(torch.float32)


def bits_of(x: torch.Tensor) -> list[str]:
    return [hex(b & 0xFFFFFFFF) for b in x.view(torch.int32).tolist()]


def test_to_the_nearest():
    """The numbers have every exponent, and some lie halfway between two."""
    bits = torch.randint(0x00800000, 0x7F7FE000, (4096,), dtype=torch.int32, device=DEVICE)
    bits[::4] = bits[::4] & -0x2000 | 0x1000
    bits[1::8] |= 0x1FFF
    x = torch.where(torch.rand(4096, device=DEVICE) < 0.5, -1.0, 1.0) * bits.view(torch.float32)
    assert torch.equal(operand(x), rounded(x))
    assert torch.equal(operand(rounded(x)), rounded(x))
    assert bool(((rounded(x) - x).abs() <= 2.0**-11 * x.abs()).all())


def test_halves():
    """Between 1 and the next number 2^-10 above, and that and the one after it; and an odd 0."""
    one, half = 0x3F800000, 0x1000
    bits = bits_of(operand(of_bits(*[sign | one + n * half for n in (1, 3, 5, 7) for sign in (0, 1 << 31)])))
    even = DEVICE.type == "cuda" and torch.cuda.get_device_capability() >= (9, 0)
    to = (0, 4, 4, 8) if even else (2, 4, 6, 8)
    assert bits == [hex(sign | one + n * half) for n in to for sign in (0, 1 << 31)]


# bits, rounded
NUMBERS = {
    "zero": (0x00000000, 0x00000000), "-zero": (0x80000000, 0x80000000),
    "infinity": (0x7F800000, 0x7F800000), "-infinity": (0xFF800000, 0xFF800000),
    "largest of tf32": (0x7F7FE000, 0x7F7FE000), "not halfway to infinity": (0x7F7FEFFF, 0x7F7FE000),
    "halfway to infinity": (0x7F7FF000, 0x7F800000), "largest float": (0x7F7FFFFF, 0x7F800000),
    "-largest float": (0xFF7FFFFF, 0xFF800000), "one": (0x3F800000, 0x3F800000), "all ones": (0x3FFFFFFF, 0x40000000),
    "smallest normal": (0x00800000, 0x00800000), "above it": (0x00801FFF, 0x00802000),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_at_the_ends(name):
    bits, wanted = NUMBERS[name]
    assert bits_of(operand(of_bits(*[bits] * 16))) == [hex(wanted)] * 16


@pytest.mark.parametrize("bits", [0x007FFFFF, 0x80003FFF, 0x00000001, 0x00002001])
def test_below_the_smallest_normal_number(bits):
    """Either neighbour: one path cuts, the other need not."""
    below = bits & ~0x1FFF
    assert set(bits_of(operand(of_bits(*[bits] * 16)))) <= {hex(below), hex(below + 0x2000)}


def test_what_is_no_number_stays_none():
    """Whichever its bits are, a sum with which could be those of -0, of 0 or of infinity."""
    x = of_bits(*[0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFF000, 0xFFFFF000] * 2)
    assert operand(x).isnan().all()


def test_other_precisions_and_dtypes_stay_as_they_are():
    x = torch.randn(64, device=DEVICE)
    for precision, dtype in (("ieee", torch.float32), ("tf32", torch.float16), ("tf32", torch.float64)):
        assert torch.equal(run(x.to(dtype), precision), x.to(dtype))


def test_one_instruction_from_sm_90_on():
    """By the GPU that is compiled for, not by one that is here."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=os.environ | {"TRITON_INTERPRET": "0"}, cwd=ROOT, capture_output=True,
        text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr
    before, since = ["fma.rn.f32"], ["cvt.rn.tf32.f32"]
    assert json.loads(done.stdout) == {"80": before, "89": before, "90": since, "120": since}
