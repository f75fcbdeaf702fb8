"""kernels/device/tf32.py rounds as cvt.rna.tf32.f32 does; tests/cuda_on_host/tensor_cores.cu asks tf32.cuh the same."""

import pytest
import torch

from kernels.check.contract import DEVICE
from kernels.check.tf32 import rounded

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
tf32 = pytest.importorskip("kernels.device.tf32")


@triton.jit
def _kernel(x_ptr, rounded_ptr, operand_ptr, PRECISION: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    tl.store(rounded_ptr + place, tf32.rounded(x, PRECISION))
    tl.store(operand_ptr + place, tf32.operand(x, PRECISION))


def run(x: torch.Tensor, precision: str = "tf32") -> tuple[torch.Tensor, torch.Tensor]:
    """(rounded, operand) of x, of which there are a power of two."""
    found = torch.empty_like(x), torch.empty_like(x)
    _kernel[(1,)](x, *found, PRECISION=precision, BLOCK=len(x))
    return found


def cut(x: torch.Tensor) -> torch.Tensor:
    """What tensor cores read of float32 x."""
    return (x.view(torch.int32) & -0x2000).view(torch.float32)


def of_bits(*bits: int) -> torch.Tensor:
    """float32 numbers."""
    return torch.tensor([b - (b >> 31 << 32) for b in bits], dtype=torch.int32, device=DEVICE).view(torch.float32)


def bits_of(x: torch.Tensor) -> list[str]:
    return [hex(b & 0xFFFFFFFF) for b in x.view(torch.int32).tolist()]


def test_to_the_nearest():
    """Of every exponent, and of numbers that lie halfway between two."""
    bits = torch.randint(0x00800000, 0x7F7FE000, (4096,), dtype=torch.int32, device=DEVICE)
    bits[::4] = bits[::4] & -0x2000 | 0x1000
    bits[1::8] |= 0x1FFF
    x = torch.where(torch.rand(4096, device=DEVICE) < 0.5, -1.0, 1.0) * bits.view(torch.float32)
    for found in map(cut, run(x)):
        assert torch.equal(found, rounded(x))
    assert torch.equal(run(x)[0], rounded(x))
    assert torch.equal(run(rounded(x))[0], rounded(x))
    assert bool(((rounded(x) - x).abs() <= 2.0**-11 * x.abs()).all())


# bits, rounded
NUMBERS = {
    "zero": (0x00000000, 0x00000000), "-zero": (0x80000000, 0x80000000),
    "infinity": (0x7F800000, 0x7F800000), "-infinity": (0xFF800000, 0xFF800000),
    "largest of tf32": (0x7F7FE000, 0x7F7FE000), "not halfway to infinity": (0x7F7FEFFF, 0x7F7FE000),
    "halfway to infinity": (0x7F7FF000, 0x7F800000), "largest float": (0x7F7FFFFF, 0x7F800000),
    "-largest float": (0xFF7FFFFF, 0xFF800000), "one": (0x3F800000, 0x3F800000), "all ones": (0x3FFFFFFF, 0x40000000),
    "smallest normal": (0x00800000, 0x00800000), "and half a place": (0x00801000, 0x00802000),
    "denormal": (0x007FFFFF, 0x007FE000), "-denormal": (0x80003FFF, 0x80002000), "least": (0x00000001, 0x00000000),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_at_the_ends(name):
    """What is below the smallest normal number is cut."""
    bits, wanted = NUMBERS[name]
    for found in map(cut, run(of_bits(*[bits] * 16))):
        assert bits_of(found) == [hex(wanted)] * 16


def test_what_is_no_number_stays_none():
    """Whichever its bits are, a sum with which could be those of -0, of 0 or of infinity."""
    x = of_bits(*[0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFF000, 0xFFFFF000] * 2)
    assert all(found.isnan().all() for found in map(cut, run(x)))


def test_other_precisions_and_dtypes_stay_as_they_are():
    x = torch.randn(64, device=DEVICE)
    for precision, dtype in (("ieee", torch.float32), ("tf32", torch.float16), ("tf32", torch.float64)):
        assert all(torch.equal(found, x.to(dtype)) for found in run(x.to(dtype), precision))
