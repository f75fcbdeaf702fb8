"""06, How a GPU runs a kernel: what `python -m lessons.n06_how_a_gpu_runs_a_kernel --save` recorded."""

from __future__ import annotations

from lessons.n06_how_a_gpu_runs_a_kernel import arithmetic, recorded
from lessons.n06_how_a_gpu_runs_a_kernel.recorded import (
    in_flight,
    intensity,
    latency_ns,
    occupancy,
    ridge,
    roof,
)
from lessons.shared.claim import claim
from lessons.shared.records import GPU, device, gb_per_s, sms, tflop_per_s, yardstick

NOTEBOOK = "06"
one = GPU.one
KIB, MIB = 2**10, 2**20
BATCH = 65536


def product(name: str, precision: str):
    return one("product", name=name, precision=precision, **({} if name == "outer" else {"rows": BATCH}))


def stride(n: int) -> float:
    return gb_per_s(one("stride", stride=n))


def flight(block: int, programs: int) -> float:
    return gb_per_s(one("flight", block=block, programs=programs))


def predicted(block: int, programs: int) -> float:
    return arithmetic.copy_rate(programs, block, latency_ns("HBM"), 1e3 * yardstick())


def _latencies() -> tuple:
    found = [latency_ns(level) for level in ("L1", "L2", "HBM")]
    assert found[0] < found[1] / 2
    assert found[1] < found[2] / 2
    return tuple(found)


def _reread() -> tuple:
    """TB/s from the L1, the L2 (past the L1) and HBM: each level is slower than the one before."""
    asked = (64 * KIB, "L1"), (8 * MIB, "L2"), (1024 * MIB, "L1")
    found = [gb_per_s(one("reread", size=size, cache=cache)) / 1e3 for size, cache in asked]
    assert found == sorted(found, reverse=True)
    return tuple(found)


def _strides() -> tuple:
    found = [stride(n) for n in (1, 2, 8)]
    for n, rate in zip((1, 2, 8), found, strict=True):
        assert 0.75 < rate * n / found[0] < 1.25, f"stride {n} is not what its sectors say"
    return tuple(found)


def _beyond_8() -> tuple:
    found = [stride(n) for n in (8, 16, 32)]
    assert found[1] < 0.7 * found[0]
    return tuple(found[1:])


def _two_sectors() -> tuple:
    return (1e9 * recorded.ncu_read("stride 32") / 2**25,)


def _needed() -> tuple:
    rate = (1e3 * yardstick()) / 2
    return yardstick(), latency_ns("HBM"), rate * latency_ns("HBM") / sms() / 1e3


def _one_small() -> tuple:
    return predicted(128, 1), flight(128, 1)


def _sixteen_small() -> tuple:
    assert flight(128, 16) < 0.9 * (1e3 * yardstick())
    return predicted(128, 16), flight(128, 16)


def _knee() -> tuple:
    """The best of the copies in a loop; how far below it those are that have 16 and 33 KB of an SM in flight."""
    found = GPU.rows("flight")
    found = [row for _, row in found[found["programs"] > 0].iterrows()]
    best = max(gb_per_s(row) for row in found)
    below = [
        [100 * (1 - gb_per_s(row) / best) for row in found if round(in_flight(row) * 1e3) == 4 * numbers]
        for numbers in (4096, 8192)
    ]
    assert max(below[1]) < max(below[0]) / 2
    return best, min(below[0]), max(below[0]), min(below[1]), max(below[1])


def _few_large() -> tuple:
    few, many = one("flight", block=8192, programs=2), one("flight", block=128, programs=16)
    assert gb_per_s(few) > gb_per_s(many)
    assert round(occupancy(many)) == 100
    return occupancy(few), gb_per_s(few), gb_per_s(many)


def _registers() -> tuple:
    small, large = one("flight", block=128, programs=0), one("flight", block=8192, programs=0)
    assert recorded.resident(large) < recorded.resident(small)
    return large["registers"], recorded.resident(large), 100 * gb_per_s(large) / (1e3 * yardstick())


def _begin_and_end() -> tuple:
    """BLOCK 128 with a program for each tile, and with as many an SM that go on in a loop."""
    each = one("flight", block=128, programs=0)
    assert recorded.resident(each) == 16
    assert gb_per_s(each) < 0.8 * flight(128, 16)
    return gb_per_s(each), flight(128, 16), each["bytes"] / 8 / 128


def _roofs() -> tuple:
    found = [roof(precision) for precision in ("fp32", "tf32", "bf16")]
    assert found == sorted(found)
    return tuple(found)


def _ridges() -> tuple:
    return ridge("fp32"), ridge("tf32"), ridge("bf16")


def _first_layer() -> tuple:
    assert all(intensity(product("bottom 1", name)) < ridge(name) for name in ("fp32", "tf32", "bf16"))
    return intensity(product("bottom 1", "fp32")), intensity(product("bottom 1", "bf16"))


def _top_layer() -> tuple:
    """The top MLP's first layer: which side of the ridge it is on, by precision, and what it reaches."""
    sides = [intensity(product("top 1", name)) > ridge(name) for name in ("fp32", "tf32")]
    assert sides[0]
    rates = [tflop_per_s(product("top 1", name)) for name in ("fp32", "tf32", "bf16")]
    assert rates[0] < rates[1]
    share = 100 * rates[2] / recorded.bound(product("top 1", "bf16"))
    assert share < 30
    return intensity(product("top 1", "fp32")), *rates, share


def _near_the_ridge() -> tuple:
    assert abs(intensity(product("bottom 2", "bf16")) / ridge("bf16") - 1) < 0.15
    return ()


def _padded() -> tuple:
    row = product("top 1 padded", "bf16")
    assert row["depth"] == 368
    rate = tflop_per_s(row)
    assert rate > 1.5 * tflop_per_s(product("top 1", "bf16")), "then the rows' places are not why"
    return (rate,)


def _pointwise() -> tuple:
    row = recorded.pointwise()
    return intensity(row), row["percent_of_copy"]


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said(
    "An H200 has {} of them; each has {:.0f} KiB of registers, and as much shared memory and L1 together.",
    lambda: (sms(), 4 * device("regs_per_multiprocessor") / KIB),
)
said("CUDA reports {:.0f} MiB of it.", lambda: (device("L2_cache_size") / MIB,))
said(
    "A read that waits for the one before takes {:.0f} ns from L1, {:.0f} ns from the L2, {:.0f} ns from HBM.",
    _latencies,
)
said("All SMs together read {:.0f} TB/s from L1, {:.1f} TB/s from the L2 and {:.1f} TB/s from HBM.", _reread)
said("Stride 1 reads {:.0f} GB/s, stride 2 {:.0f} GB/s, stride 8 {:.0f} GB/s.", _strides)
said("Stride 16 reads {:.0f} GB/s and stride 32 {:.0f} GB/s.", _beyond_8)
said("With stride 32 the memory reads {:.0f} bytes a number, two sectors.", _two_sectors)
said(
    "PyTorch's copy of 1 GiB runs at {:.2f} TB/s, half of which is read; with {:.0f} ns this is {:.1f} KB "
    "for each SM, at any time.",
    _needed,
)
said("One program of 128 numbers: predicted {:.0f} GB/s, measured {:.0f} GB/s.", _one_small)
said("Sixteen of them: predicted {:.0f} GB/s, measured {:.0f} GB/s.", _sixteen_small)
said(
    "The best is {:.0f} GB/s; with 16 KB in flight copies are {:.0f} to {:.0f} % below it, with 33 KB {:.0f} to "
    "{:.0f} %.",
    _knee,
)
said(
    "Two programs of 8192 numbers are {:.1f} % of an SM's warps and copy {:.0f} GB/s; sixteen of 128 numbers are all "
    "that it has room for, and copy {:.0f} GB/s.",
    _few_large,
)
said(
    "With 8192 numbers a thread has {:.0f} registers, an SM room for {:.0f} programs, and the copy {:.0f} % of the "
    "rate of PyTorch's.",
    _registers,
)
said(
    "With BLOCK 128 it has {:.0f} GB/s, and {:.0f} GB/s where as many programs an SM go on in a loop: {:,.0f} programs "
    "must begin and end.",
    _begin_and_end,
)
said(
    "The fastest fifth of runs reaches {:.0f} TFLOP/s in fp32, {:.0f} TFLOP/s in tf32 and {:.0f} TFLOP/s in bf16.",
    _roofs,
)
said("The ridges are at {:.0f}, {:.0f} and {:.0f} FLOP a byte", _ridges)
said(
    "The bottom MLP's first layer has {:.0f} FLOP a byte in float32 and {:.0f} in bf16, each left of its own ridge.",
    _first_layer,
)
said(
    "The top MLP's first layer has {:.0f} in float32; it reaches {:.0f} TFLOP/s in fp32, {:.0f} TFLOP/s in tf32 and "
    "{:.0f} TFLOP/s in bf16, there {:.0f} % of its bound.",
    _top_layer,
)
said("Near the ridge, as 512 to 256 is, the test says little.", _near_the_ridge)
said("with 368 it reaches {:.0f} TFLOP/s in bf16.", _padded)
said("`add_relu` has {:.2f} FLOP a byte, and runs at {:.0f} % of the copy's rate.", _pointwise)
