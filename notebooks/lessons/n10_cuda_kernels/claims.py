"""10, CUDA kernels: what `python -m lessons.n10_cuda_kernels count` and `--save` wrote, and the op's record."""

from __future__ import annotations

from functools import partial

from lessons.n10_cuda_kernels import recorded
from lessons.n10_cuda_kernels.counting import STEPS, VARIANTS, WIDTH
from lessons.n10_cuda_kernels.puzzles import FAST
from lessons.n10_cuda_kernels.recorded import CUDA_STEPS, a_number, kernel, on_gpu, share
from lessons.shared.claim import claim
from lessons.shared.records import ADD_MUL_ACTIVATION, Record, apart, copy_us

NOTEBOOK = "10"
one = CUDA_STEPS.one
us = recorded.kernel_us
NUMBERS = 65536 * 512


def _steps() -> tuple:
    scalar, strided, coalesced, wide = (us("step", name) for name in ("scalar", "strided", "coalesced", "wide"))
    assert apart(one("step", name="strided"), one("step", name="coalesced"))
    assert strided > coalesced
    assert wide < coalesced < scalar
    return scalar, strided, coalesced, wide


def _fast() -> tuple:
    """All but strided are far enough from the puzzle's limit for another run, and another GPU."""
    limit = FAST * copy_us(one("step", name="scalar")["bytes"])
    assert us("step", "strided") > 1.5 * limit
    assert max(us("step", name) for name in STEPS if name != "strided") < limit / 1.5
    return (FAST,)


def _a_request(name: str, kind: str) -> float:
    """Sectors a warp's read (ld) or write (st), by ncu."""
    sectors, requests = (f"l1tex__t_{what}_pipe_lsu_mem_global_op_{kind}.sum" for what in ("sectors", "requests"))
    return on_gpu(name, sectors) / on_gpu(name, requests)


def _requests() -> tuple:
    counted = {"scalar": 4, "strided": 32, "coalesced": 4, "wide": 16}  # on the host: test_lesson.py
    for name, sectors in counted.items():
        assert _a_request(name, "ld") == _a_request(name, "st") == sectors
    return counted["strided"], counted["coalesced"]


def _memory() -> tuple:
    read = {name: on_gpu(name, "dram__bytes_read.sum") / 1e6 for name in STEPS}
    others = [read[name] for name in STEPS if name != "strided"]
    assert max(others) < 1.001 * min(others)
    sectors = {name: on_gpu(name, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum") for name in STEPS}
    assert sectors["strided"] == 8 * sectors["coalesced"]
    assert sectors["scalar"] == sectors["coalesced"] == sectors["wide"]
    return read["strided"], max(others)


def _work() -> tuple:
    for kind in ("ld", "st"):
        requests = {name: on_gpu(name, f"l1tex__t_requests_pipe_lsu_mem_global_op_{kind}.sum") for name in STEPS}
        assert requests["scalar"] == requests["coalesced"] == 4 * requests["wide"]
    assert min(a_number("scalar"), a_number("coalesced")) > 3 * a_number("wide")
    return ()


def _six_lines() -> tuple:
    lines = partial(Record("pointwise").one, "add_relu", name="six lines", dtype="float32")
    even, odd = (lines(shape=shape) for shape in ("even", "odd"))
    assert set(even["accesses"]["ld"]) == {"16"}
    assert set(odd["accesses"]["ld"]) == {"4"}
    return even["us_p50"], odd["us_p50"]


def _wide() -> tuple:
    for dtype in ("float32", "bfloat16"):
        for name in VARIANTS:
            assert recorded.compiled()["accesses"][f"{name}_{dtype}"] == {"ld": {"16": 3}, "st": {"16": 1}}
    return ()


def _more() -> tuple:
    """Instructions that a thread executes beyond the base's."""
    base = kernel("base_float32")["executed"]
    return (kernel("remainder_float32")["executed"] - base,)


def _bits() -> tuple:
    more = kernel("bits64_bfloat16")["registers"] - kernel("base_bfloat16")["registers"]
    assert kernel("bits64_float32")["registers"] <= kernel("base_float32")["registers"]
    return kernel("bits64_float32")["executed"] - kernel("base_float32")["executed"], more


def _exact() -> tuple:
    found = kernel("expf_float32")
    return found["standing"], found["executed"], a_number("expf_float32"), a_number("base_float32")


def _on_gpu() -> tuple:
    """A warp takes 32 times a thread's numbers."""
    each = STEPS | {f"{name}_float32": WIDTH["float32"] for name in VARIANTS}
    found = {name: on_gpu(name, "smsp__inst_executed.sum") * 32 * of / NUMBERS for name, of in each.items()}
    assert len(found) == 9
    for name, warp in found.items():
        assert warp == kernel(name)["executed"], f"{name}: the shortest way is not the one that is taken"
    return found["base_float32"], found["expf_float32"]


def _float32() -> tuple:
    times = {name: us("variant", name, dtype="float32") for name in VARIANTS}
    assert max(times.values()) < 1.03 * times["base"]
    assert not any(apart(_variant("base", "float32"), _variant(name, "float32")) for name in VARIANTS)
    return times["base"], max(times.values())


def _variant(name: str, dtype: str):
    return one("variant", name=name, dtype=dtype, threads=256)


def _bfloat16() -> tuple:
    base = _variant("base", "bfloat16")
    assert [name for name in VARIANTS if apart(base, _variant(name, "bfloat16"))] == ["expf"]
    return tuple(us("variant", name, dtype="bfloat16") for name in ("base", "remainder", "bits64", "expf"))


def _threads() -> tuple:
    for dtype in WIDTH:
        found = CUDA_STEPS.rows("variant", name="base", dtype=dtype)
        assert {64, 1024} == {found["threads"].min(), found["threads"].max()}
        assert not any(apart(_variant("base", dtype), row) for _, row in found.iterrows())
    return ()


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


def _racecheck() -> tuple:
    said = CUDA_STEPS.head("sanitizer")
    assert any("by thread (232,0,0) in block (3,0,0)" in line for line in said["memcheck"])
    assert any("on CUDA API call to cudaDeviceSynchronize" in line for line in said["memcheck"])
    assert any("[1024 hazards]" in line for line in said["racecheck"])
    return ()


def _sigmoid() -> tuple:
    labels = {"form": "functional", "rows": 65536, "dtype": "float32", "activation": "sigmoid"}
    names = "cuda", "triton", "torch.compile", "eager"
    return tuple(ADD_MUL_ACTIVATION.us("bandwidth", implementation=name, **labels) for name in names)


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said(
    "A number a thread takes {:.1f} µs, 16 in a row {:.1f} µs, 16 a block's width apart {:.1f} µs, and four at a time "
    "{:.1f} µs.",
    _steps,
)
said("The wide kernel runs at {:.0f} % of the rate of PyTorch's copy.", lambda: (share(one("step", name="wide")),))
said("at most {} times as long as a copy.", _fast)
said("`ncu` counts {} and {} sectors a request", _requests)
said("The memory reads {:.0f} MB for strided and {:.0f} MB for each of the others", _memory)
said("scalar and coalesced make four times the requests of wide and execute over three times its instructions.", _work)
said("six lines of notebook 08 take {:.1f} µs with 16 bytes a lane; at its odd size, with 4, {:.1f} µs.", _six_lines)
said("The base is sigmoid(x + 0.5 y + bias), 16 bytes a thread.", _wide)
said("`%` is no function call: {} more instructions for 4 numbers.", _more)
said("64 bits add {}, and in bfloat16 {} registers.", _bits)
said("there stand {} instructions, of which {} execute: {:.1f} a number in place of {:.1f}.", _exact)
said("{:.0f} instructions a warp for the base, {:.0f} with `expf`.", _on_gpu)
said("In float32 the base takes {:.1f} µs and the slowest of the variants {:.1f} µs", _float32)
said(
    "In bfloat16, half the bytes, the base takes {:.1f} µs, `%` {:.1f} µs, 64 bits {:.1f} µs and `expf` {:.1f} µs: "
    "only `expf` shows.",
    _bfloat16,
)
said("Blocks of 64 to 1024 threads make no difference.", _threads)
said(
    "`cudaDeviceSynchronize` reports it, not the launch. 256 numbers of 4 bytes are racecheck's 1024 hazards.",
    _racecheck,
)
said("nvcc's thread executes {} instructions for four numbers, Triton's {}.", _two_compilers)
said("Triton spends four more on the minus of e⁻ᶻ, which nvcc puts into a constant.", _minus)
said("In Triton's {} that stand there", lambda: (kernel("triton_float32")["standing"],))
said(
    "sigmoid takes {:.1f} µs by CUDA, {:.1f} µs by Triton, {:.1f} µs by `torch.compile` and {:.0f} µs in eager "
    "PyTorch.",
    _sigmoid,
)
