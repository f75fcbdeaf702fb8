"""10, CUDA kernels: what `python -m lessons.n10_cuda_kernels count` and `--save` wrote, and 06's and 08's records."""

from __future__ import annotations

import itertools

from lessons.n10_cuda_kernels import recorded
from lessons.n10_cuda_kernels.counting import DTYPES, WAYS
from lessons.n10_cuda_kernels.forms import FORMS
from lessons.n10_cuda_kernels.recorded import CUDA_STEPS, kernel, on_gpu
from lessons.shared.claim import claim
from lessons.shared.records import GPU, LEAST, SECTOR, Record, apart, gb_per_s

NOTEBOOK = "10"
one = CUDA_STEPS.one
THREADS, BLOCK = 2048, 256  # of an SM, of a block
NUMBERS = 65536 * 512
EXECUTED, REQUESTS = "smsp__inst_executed.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"  # ncu's
STEPS = ("scalar", "strided", "coalesced", "early", "wide")


def step_us(name: str) -> float:
    return one("step", name=name)["us_p50"]


def _faster() -> tuple:
    slowest_first = [one("step", name=name) for name in ("strided", "scalar", "coalesced", "early", "wide")]
    for slow, fast in itertools.pairwise(slowest_first):
        assert slow["us_p50"] > fast["us_p50"]
        assert apart(slow, fast)
    assert _requests("scalar") == 4
    return step_us("scalar"), in_flight(1)


def _a_request(name: str, kind: str) -> float:
    """Sectors a warp's read (ld) or write (st), by ncu."""
    sectors, requests = (f"l1tex__t_{what}_pipe_lsu_mem_global_op_{kind}.sum" for what in ("sectors", "requests"))
    return on_gpu(name, sectors) / on_gpu(name, requests)


def _requests(name: str) -> int:
    counted = {"scalar": 4, "strided": 32, "coalesced": 4, "early": 4, "wide": 16}[name]  # on the host: test_lesson.py
    assert _a_request(name, "ld") == _a_request(name, "st") == counted
    return counted


def _strided() -> tuple:
    return step_us("strided"), _requests("strided")


def _not_by_bytes() -> tuple:
    """strided beside coalesced: µs, HBM's bytes, sectors."""
    moved = {name: sum(on_gpu(name, f"dram__bytes_{way}.sum") for way in ("read", "write")) for name in STEPS}
    bytes_, times = moved["strided"] / moved["coalesced"], step_us("strided") / step_us("coalesced")
    assert 2 * bytes_ < times
    sectors = on_gpu("strided", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum")
    assert on_gpu("strided", "dram__bytes_read.sum") < sectors * SECTOR / 2, "the caches do not serve most of them"
    return times, bytes_, _requests("strided") // _requests("coalesced")


def in_flight(loads: int) -> float:
    """KB of x that an SM's threads wait for, each for so many loads of 4 bytes."""
    return THREADS * loads * 4 / 1024


def _coalesced() -> tuple:
    assert kernel("coalesced")["registers"] * THREADS <= 65536
    assert kernel("coalesced")["order"].startswith("LLSLLS")
    return step_us("coalesced"), _requests("coalesced"), in_flight(1)


def _wide() -> tuple:
    requests = (on_gpu(name, REQUESTS) for name in ("coalesced", "wide"))
    assert next(requests) == 4 * next(requests)
    return step_us("wide"), _requests("wide"), in_flight(4)


def _copy() -> tuple:
    """As fast as wide."""
    copied = one("copy", of="step")
    assert copied["bytes"] == one("step", name="wide")["bytes"]
    assert not apart(copied, one("step", name="wide"))
    return (copied["us_p50"],)


def _early() -> tuple:
    """Four loads of x and four of the bias, then the stores; by nvcc's code and by ncu about as many instructions as
    coalesced, and as many requests."""
    for name in ("early", "wide"):
        assert kernel(name)["registers"] * THREADS <= 65536
    assert kernel("early")["order"] == "LLLLLLLLSSSS"
    assert 0.98 < kernel("early")["executed"] / kernel("coalesced")["executed"] <= 1
    early, coalesced = ([on_gpu(name, metric) for metric in (EXECUTED, REQUESTS)] for name in ("early", "coalesced"))
    assert 0.98 < early[0] / coalesced[0] <= 1
    assert early[1] == coalesced[1]
    return ()


def _bytes_decide() -> tuple:
    """µs that early saves of coalesced, and wide of early."""
    saved = step_us("coalesced") - step_us("early"), step_us("early") - step_us("wide")
    assert saved[0] > 5 * saved[1]
    assert on_gpu("wide", EXECUTED) < 0.4 * on_gpu("early", EXECUTED)
    (other,) = (record for record in CUDA_STEPS._others() if record.gpu.startswith("h100"))
    assert not apart(*(other.one("step", name=name) for name in ("early", "wide")))
    return saved


def _of_remainder() -> tuple:
    """Percent that `long long` costs beside `int`, in each dtype, at both shapes alike; by_row is not always first."""
    costs, first = {}, set()
    for shape in ("even", "odd"):
        for dtype in DTYPES.values():
            us = {name: CUDA_STEPS.us("index", name=name, shape=shape, dtype=dtype) for name in WAYS}
            costs.setdefault(dtype, set()).add(round(100 * (us["by_index long long"] / us["by_index int"] - 1)))
            first.add(min(us, key=us.get))
    assert first == {"by_row long long", "by_index int"}
    (single,), (half,) = costs["float32"], costs["bfloat16"]
    return single, half


def _begin() -> tuple:
    """Programs of 06's copy that begin per ns, where these limit it."""
    begun = [2**26 / block / GPU.us("flight", block=block, programs=0) / 1e3 for block in (128, 256)]
    assert max(begun) < 1.05 * min(begun)
    assert f"{begun[0]:.1f}" == f"{begun[1]:.1f}"
    return begun[1], NUMBERS / BLOCK / begun[1] / 1e3


def _by_bytes() -> tuple:
    """µs of 06's copy in a loop, for as many bytes: one element a thread in flight, and four."""
    values = []
    for block in (128, 512):
        row = GPU.one("flight", block=block, programs=16)
        values += [one("step", name="wide")["bytes"] / gb_per_s(row) / 1e3, 16 * block * 4 / 1024]
    (slow, few), (fast, many) = values[:2], values[2:]
    return slow, few, fast, many


def _library(name: str) -> tuple:
    """µs, as the cell above the capstone's forms prints them."""
    return (CUDA_STEPS.us("op", shape="even", name=name),)


def _same() -> tuple:
    times = [_library(name)[0] for name in ("torch.compile", "triton, the op", "cuda, the op")]
    assert max(times) < 1.01 * min(times) < LEAST * min(times)
    return ()


def _sanitizers() -> tuple:
    reports = CUDA_STEPS.head("sanitizer")
    assert any("by thread (232,0,0) in block (3,0,0)" in line for line in reports["memcheck"])
    assert any("on CUDA API call to cudaDeviceSynchronize" in line for line in reports["memcheck"])
    assert any("[1024 hazards]" in line for line in reports["racecheck"])
    return ()


def _answer() -> tuple:
    """µs of the answer to puzzle 4, and percent that it takes longer than the Triton kernel; which forms wait twice."""
    record = CUDA_STEPS.with_part("op", shape="even")
    assert record == CUDA_STEPS, "the notebook prints another run"
    forms = recorded.compiled()["forms"]
    assert {name for name, form in forms.items() if form["loads"] == "LL+L"} == {"one element", "fast functions"}
    assert {form["loads"] for form in forms.values()} == {"LL+L", "LLL"}
    assert recorded.compiled()["answer"] == forms["one element"]["loads"]
    assert set(forms) == {*FORMS, "triton, by hand"}
    times = [record.us("op", shape="even", name=f"{way}, by hand") for way in ("cuda", "triton")]
    return times[0], 100 * (times[0] / times[1] - 1)


def form_us(name: str) -> float:
    return one("form", name=name)["us_p50"]


def _decides() -> tuple:
    """They are as fast as Triton's; the other changes save less than a fifth of what they save."""
    assert not apart(one("form", name="four elements"), one("form", name="triton, by hand"))
    assert max(_one_change()) < 0.2 * _saved("four elements")
    return ()


def _saved(name: str) -> float:
    """Percent of one element's time that this form does without."""
    return 100 * (1 - form_us(name) / form_us("one element"))


def _one_change() -> tuple:
    return _saved("32-bit index"), _saved("fast functions")


def _not_enough() -> tuple:
    """µs of section 3's int loop: one wait, fewer instructions an element, and all blocks on the GPU at once."""
    loop, row = kernel("by_index int float32"), one("index", name="by_index int", shape="even", dtype="float32")
    assert loop["registers"] * THREADS <= 65536
    assert loop["order"].startswith("LLLS")
    assert loop["iteration"] < recorded.compiled()["forms"]["four elements"]["an_element"]
    assert row["bytes"] == one("form", name="four elements")["bytes"]
    assert apart(row, one("form", name="four elements"), least=1.2)
    return (row["us_p50"],)


def _triton_relu() -> tuple:
    return (Record("pointwise").us("add_relu", name="six lines", shape="even", dtype="float32"),)


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said("| *scalar* | {:.1f} | 4 sectors | {:.0f} KB |", _faster)
said("| *strided* | {:.1f} | {} sectors | |", _strided)
said(
    "*strided* takes {:.1f} times as long as *coalesced*, but moves only {:.1f} times as many bytes to and from HBM. "
    "Its requests touch {} times as many sectors, mostly in the caches.",
    _not_by_bytes,
)
said("| *coalesced* | {:.1f} | {} sectors | {:.0f} KB |", _coalesced)
said("| *early* | {:.1f} | {} sectors | {:.0f} KB |", lambda: (step_us("early"), _requests("early"), in_flight(4)))
said("| *wide* | {:.1f} | {} sectors | {:.0f} KB |", _wide)
said(
    "One lane that walks down a column alone takes {:.0f} µs, and four warps that share tiles of 32 rows take {:.0f}.",
    lambda: tuple(Record("backward").us("step", step=name) for name in ("sum_rows", "sum_tiles")),
)
said("| PyTorch's copy, as many bytes | {:.1f} | | |", _copy)
said(
    "but takes {:.1f} µs less. *wide* saves only another {:.1f} µs, and on an H100 nothing measurable. "
    "So bytes in flight decide most.",
    _bytes_decide,
)
said("on the H200 a `long long` remainder costs {:.0f} % in float32 and {:.0f} % in bfloat16.", _of_remainder)
said("So a thread has 4 bytes of x in flight, and an SM's 2048 threads have {:.0f} KB.", lambda: (in_flight(1),))
said("four loads of x, then four stores. Now {:.0f} KB are in flight.", lambda: (in_flight(4),))
said("*wide* has the same {:.0f} KB in flight, with a quarter of the requests.", lambda: _wide()[2:])
said(
    "*scalar* also starts {:,} blocks. In notebook 06 at most {:.1f} blocks of 128 threads began per ns. If blocks of "
    "256 begin no faster, this takes {:.0f} µs.",
    lambda: (NUMBERS // BLOCK, *_begin()),
)
said("| notebook 06's copy, as many | {:.0f} | | {:.0f} KB | | the same copy | {:.0f} | | {:.0f} KB |", _by_bytes)
said("*early* makes as many requests as *coalesced*, with nearly as many instructions,", _early)
said("On the H200, the lecture's answer takes {:.1f} µs, {:.0f} % longer than the Triton kernel.", _answer)
said("Four elements decide: they alone make the kernel as fast as Triton's.", _decides)
said("The second wait costs at most {:.0f} %, the exact functions {:.0f} %.", _one_change)
said("Section 3's float32 `int` loop shows what of it does not count, for it still takes {:.1f} µs:", _not_enough)
said("Thread 232 of block 3 has element 1000, the first beyond the end.", _sanitizers)
said("| Triton, notebook 08 | {:.1f} | | |", _triton_relu)
said("| eager, four kernels | {:.1f} |", lambda: _library("eager"))
said("| `torch.compile` | {:.1f} |", lambda: _library("torch.compile"))
said("| the library's op in Triton | {:.1f} |", lambda: _library("triton, the op"))
said("| the library's op in CUDA: 16 bytes a thread | {:.1f} |", lambda: _library("cuda, the op"))
said("The last three differ by less than 1 %: memory limits them.", _same)
