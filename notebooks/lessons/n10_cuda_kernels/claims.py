"""10: its prose quotes what its cells print; and comparisons of recorded times, and of what nvcc and ncu counted."""

from __future__ import annotations

import itertools

from lessons.n10_cuda_kernels.forms import FORMS
from lessons.n10_cuda_kernels.recorded import CUDA_STEPS, REQUESTS, in_flight, kernel, on_gpu, sectors
from lessons.shared.claim import claim, quotes
from lessons.shared.records import LEAST, SECTOR, apart, device

NOTEBOOK = "10"
ELEMENTS, BLOCK, REGISTERS = 65536 * 512, 256, 65536  # registers: of an SM
EXECUTED, READ, WRITTEN = "smsp__inst_executed.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"  # ncu's
quotes(NOTEBOOK)


def step_us(name: str) -> float:
    return CUDA_STEPS.us("step", name=name)


def _strided() -> tuple:
    """strided beside coalesced: µs, HBM's bytes, sectors."""
    bytes_, times = _moved("strided") / _moved("coalesced"), step_us("strided") / step_us("coalesced")
    assert 2 * bytes_ < times
    touched = on_gpu("strided", REQUESTS) * sectors("strided") * SECTOR
    assert on_gpu("strided", READ) < touched / 2, "the caches do not serve most of them"
    return times, bytes_, round(sectors("strided") / sectors("coalesced"))


def _moved(name: str) -> float:
    return on_gpu(name, READ) + on_gpu(name, WRITTEN)


def _scalar() -> tuple:
    """µs that it takes longer than coalesced, its blocks, and how many times coalesced's. Little else differs."""
    assert (sectors("scalar"), in_flight("scalar")) == (sectors("coalesced"), in_flight("coalesced"))
    assert 0.8 < on_gpu("scalar", EXECUTED) / on_gpu("coalesced", EXECUTED) < 1.25
    return step_us("scalar") - step_us("coalesced"), ELEMENTS // BLOCK, 16


def _four_bytes() -> tuple:
    """All threads that an SM may have fit into its registers; each loads x once, and the bias, before it stores."""
    threads = device("max_threads_per_multi_processor")
    for name in ("scalar", "coalesced", "early", "wide"):
        assert kernel(name)["registers"] * threads <= REGISTERS
    assert kernel("coalesced")["order"].startswith("LLSLLS")
    return threads, in_flight("coalesced")


def _bytes_decide() -> tuple:
    """µs that early saves of coalesced, and wide of early."""
    slowest_first = [CUDA_STEPS.one("step", name=name) for name in ("strided", "scalar", "coalesced", "early", "wide")]
    assert all(apart(slow, fast) for slow, fast in itertools.pairwise(slowest_first))
    assert on_gpu("early", REQUESTS) == on_gpu("coalesced", REQUESTS) == 4 * on_gpu("wide", REQUESTS)
    assert 0.98 < on_gpu("early", EXECUTED) / on_gpu("coalesced", EXECUTED) <= 1
    assert on_gpu("wide", EXECUTED) < 0.4 * on_gpu("early", EXECUTED)
    assert not apart(CUDA_STEPS.one("copy", of="step"), CUDA_STEPS.one("step", name="wide"))
    (other,) = (record for record in CUDA_STEPS._others() if record.gpu.startswith("h100"))
    assert not apart(*(other.one("step", name=name) for name in ("early", "wide")))
    saved = step_us("coalesced") - step_us("early"), step_us("early") - step_us("wide")
    assert saved[0] > 5 * saved[1]
    return saved


def _answer() -> tuple:
    """µs of the answer to puzzle 3, and how many times as long as the Triton kernel it takes."""
    by_hand = [CUDA_STEPS.us("op", name=f"{way}, by hand") for way in ("cuda", "triton")]
    return by_hand[0], by_hand[0] / by_hand[1]


def _decides() -> tuple:
    """Percent that the fast functions save; four elements are as fast as Triton's."""
    one, index, fast, four = (CUDA_STEPS.one("form", name=name) for name in FORMS)
    assert not apart(four, CUDA_STEPS.one("form", name="triton, by hand"))
    assert index["us_p50"] < one["us_p50"] < LEAST * index["us_p50"]
    assert apart(one, fast)
    return (100 * (1 - fast["us_p50"] / one["us_p50"]),)


def _same() -> tuple:
    names = ("torch.compile", "triton, by hand", "triton, the op", "cuda, the op")
    times = [CUDA_STEPS.us("op", name=name) for name in names]
    assert max(times) < 1.01 * min(times) < LEAST * min(times)
    return ()


def _copy() -> tuple:
    assert CUDA_STEPS.us("copy", of="op") > CUDA_STEPS.us("op", name="triton, by hand")
    return ()


claim(NOTEBOOK, "The second call asks for 2048 threads in a block, but a block may have at most 1024.")
claim(NOTEBOOK, "The {} threads of an SM have {:.0f} KB.", _four_bytes)
claim(
    NOTEBOOK,
    "*strided* takes {:.1f} times as long as *coalesced*, but moves only {:.1f} times as many bytes to and from HBM. "
    "Its requests touch {} times as many sectors, and the caches serve most of them.",
    _strided,
)
claim(
    NOTEBOOK,
    "and has as many bytes in flight, but takes {:.1f} µs longer. It starts {:,} blocks, {} times as many.",
    _scalar,
)
claim(
    NOTEBOOK,
    "*early* makes as many requests as *coalesced*, with nearly as many instructions, but takes {:.1f} µs less. *wide* "
    "saves only another {:.1f} µs, and on an H100 nothing measurable. So bytes in flight decide most.",
    _bytes_decide,
)
claim(NOTEBOOK, "The answer takes {:.1f} µs, {:.1f} times as long as the Triton kernel.", _answer)
claim(
    NOTEBOOK,
    "Four elements decide: they alone make the kernel as fast as Triton's. The fast functions save {:.0f} %, and the "
    "32-bit index less than 3 %, which we call no difference.",
    _decides,
)
claim(
    NOTEBOOK,
    "`torch.compile`, the Triton kernel and the library's two differ by less than 1 %: memory limits them.",
    _same,
)
claim(NOTEBOOK, "(A copy of as many bytes is no faster. It writes half of them, and this op a third.)", _copy)
