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
    "On an H200, a launch by Triton's launcher took {:.1f} µs, and a whole op that launches a cubin from C++ took "
    "{:.1f} µs.",
    _ladder,
)


def _ours() -> tuple[str, float, float, float]:
    record = LAUNCHES.with_part("launch")
    names = "kernels.cubin, from Python", "kernels.cubin, from C++", "Triton's launcher"
    python, cpp, launcher = (record.one("launch", name=name) for name in names)
    assert max(python["high"], cpp["high"]) < launcher["low"]
    return record.head("GPU").removeprefix("NVIDIA ").split()[0], python["us"], cpp["us"], launcher["us"]


claim(
    NOTEBOOK,
    "On an {}, in a run of its own, `kernels.cubin` launched in {:.1f} µs from Python and in {:.1f} µs from C++, where "
    "Triton's launcher took {:.1f} µs.",
    _ours,
)
