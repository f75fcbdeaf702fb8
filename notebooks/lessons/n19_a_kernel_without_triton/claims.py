"""Numbers in the prose of 19_a_kernel_without_triton.ipynb."""

from __future__ import annotations

from lessons.n19_a_kernel_without_triton.recorded import LAUNCHES, MAKE_OP
from lessons.shared.claim import claim
from lessons.shared.records import apart

NOTEBOOK = "19"


def _ladder() -> tuple[float, float]:
    launcher, op = (MAKE_OP.one("call", name=name) for name in ("launcher, output given", "triton"))
    assert apart(launcher, op)
    assert op["us_p50"] < launcher["us_p50"]
    return launcher["us_p50"], op["us_p50"]


claim(
    NOTEBOOK,
    "in notebook 11's, also on an H200, a launch by Triton's launcher took {:.1f} µs. Even a whole op that launches a "
    "cubin from C++ took only {:.1f} µs.",
    _ladder,
)


def _ours() -> tuple[str, float, float, float]:
    record = LAUNCHES.with_part("launch")
    names = "Triton's launcher", "kernels.cubin, from Python", "kernels.cubin, from C++"
    launcher, python, cpp = (record.one("launch", name=name) for name in names)
    assert max(python["high"], cpp["high"]) < launcher["low"]
    return record.head("GPU").removeprefix("NVIDIA ").split()[0], launcher["us"], python["us"], cpp["us"]


claim(
    NOTEBOOK,
    "| launched by, on an {} | µs | |---|---| | Triton's launcher | {:.1f} | "
    "| `kernels.cubin`, from Python | {:.1f} | | `kernels.cubin`, from C++ | {:.1f} |",
    _ours,
)


def _wild_store() -> tuple[int, int]:
    """2³¹ + 17 counts, whose offsets and number are read in 32 bits: lanes that pass the mask, and GiB in front."""
    n, block = 2**31 + 17, 1024
    signed = lambda number: (number + 2**31) % 2**32 - 2**31  # noqa: E731
    offsets = [signed(n - n % block + lane) for lane in range(block)]  # of the last block; all others are not below 0
    passing = [offset for offset in offsets if offset < signed(n)]
    assert min(passing) == -(2**31)
    return len(passing), -4 * min(passing) // 2**30


claim(NOTEBOOK, "It writes {} elements, {} GiB in front of `out`", _wild_store)
