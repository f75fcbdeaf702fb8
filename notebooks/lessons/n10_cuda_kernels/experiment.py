"""What the notebook on CUDA kernels says in times: `python -m lessons.n10_cuda_kernels --save`, on a GPU with nvcc.

    step       add_relu in float32: a number a thread; 16 after each other; 16 apart; 16, four at a time
    variant    sigmoid(x + multiplier · y + bias), 16 bytes a thread: one thing changed at a time, in float32 and
               bfloat16; threads: of a block
    op         the same by eager PyTorch, by our Triton kernel, and by our CUDA kernel
    copy       PyTorch's copy of 1 GiB
    ncu        instructions that warps execute, and sectors, as the GPU counts them
    sanitizer  what compute-sanitizer says of a kernel with a wrong guard, and of one without its barrier

What needs no GPU, `python -m lessons.n10_cuda_kernels count` writes to traces/compiled/cuda_steps.json.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import kernels
from kernels.check.host import programs
from kernels.dispatch import build, core
from kernels.dispatch.build import load_library
from kernels.runtime import KERNELS
from lessons.n10_cuda_kernels import counting, texts
from lessons.n10_cuda_kernels.counting import STEPS, VARIANTS
from lessons.shared.experiment import Experiment, Launch, Way
from lessons.shared.ncu import find_ncu, ncu_lines

COLUMNS, MULTIPLIER = 512, 0.5
THREADS = (64, 128, 256, 512, 1024)
SECONDS = 90  # of ncu, and of compute-sanitizer
METRICS = (
    "smsp__inst_executed.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "launch__registers_per_thread",
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Library:
    """steps.cu on this GPU, built by load_inline."""

    def __init__(self) -> None:
        arch = ".".join(map(str, torch.cuda.get_device_capability()))
        built = load_library(
            "cuda_steps", counting.HERE / "steps.cu", cache=build.EXTENSIONS, include=(KERNELS,),
            flags=core.CUDA_FLAGS, environment={"TORCH_CUDA_ARCH_LIST": arch},
        )
        self.library = ctypes.CDLL(str(built))
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self.library.launch_step.argtypes = [number] * 2 + [pointer] * 3 + [number] * 2 + [pointer]
        self.library.launch_variant.argtypes = (
            [number] * 3 + [pointer] * 3 + [ctypes.c_float, pointer] + [number] * 2 + [pointer]
        )

    def step(self, name: str, x: Tensor, bias: Tensor, out: Tensor) -> None:
        number, stream = list(STEPS).index(name), torch.cuda.current_stream().cuda_stream
        error = self.library.launch_step(
            number, STEPS[name], x.data_ptr(), bias.data_ptr(), out.data_ptr(), x.shape[1], x.numel(), stream
        )
        if error:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def variant(self, name: str, threads: int, x: Tensor, bias: Tensor, y: Tensor, out: Tensor) -> None:
        number, stream = VARIANTS.index(name), torch.cuda.current_stream().cuda_stream
        error = self.library.launch_variant(
            number, x.dtype == torch.bfloat16, threads, x.data_ptr(), bias.data_ptr(), y.data_ptr(), MULTIPLIER,
            out.data_ptr(), x.shape[1], x.numel(), stream,
        )
        if error:
            raise RuntimeError(f"{name}, {threads} threads: CUDA error {error}")


class OnHost:
    """In its place without a GPU: the steps through the host build, the variants by PyTorch."""

    def step(self, name: str, x: Tensor, bias: Tensor, out: Tensor) -> None:
        program = programs.build(texts.launching(name, STEPS[name]))
        buffers = [each.numpy() for each in (x, bias, out)]
        found = programs.run(program, buffers, (x.shape[1], x.numel()))
        out.view(-1).copy_(torch.from_numpy(found.buffers[2][0]))

    def variant(self, name: str, threads: int, x: Tensor, bias: Tensor, y: Tensor, out: Tensor) -> None:
        out.copy_(torch.sigmoid(x.float() + MULTIPLIER * y.float() + bias.float()))


class CudaSteps(Experiment):
    """What cuda_steps.json has; ncu, sanitizer: what these tools say of the kernels."""

    NAME = "cuda_steps"
    PARTS = ("step", "variant", "op", "copy", "ncu", "sanitizer")
    COMMANDS = ("launch_once", "count")
    FULL = 65536  # rows
    SMALL = 8

    @cached_property
    def library(self) -> Library | OnHost:
        return Library() if self.gpu else OnHost()

    def step(self) -> None:
        x, bias = self.normal(self.sizes, COLUMNS), self.normal(COLUMNS)
        expected, out = torch.relu(x + bias), torch.empty_like(x)
        ways = []
        for name in STEPS:
            launch = Launch(partial(self.library.step, name, x, bias, out), out)
            ways.append(Way({"name": name}, [launch], partial(torch.equal, expected)))
        self.compare("step", ways, captured=False, bytes=2 * x.nbytes + bias.nbytes)

    def inputs(self, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
        """x, bias, y"""
        kind = DTYPES[dtype]
        x, y = (self.normal(self.sizes, COLUMNS, dtype=kind) for _ in range(2))
        return x, self.normal(COLUMNS, dtype=kind), y

    def variant(self) -> None:
        for dtype in DTYPES:
            x, bias, y = self.inputs(dtype)
            out, ways = torch.empty_like(x), []
            for name, threads in [(name, 256) for name in VARIANTS] + [("base", n) for n in THREADS if n != 256]:
                launch = Launch(partial(self.library.variant, name, threads, x, bias, y, out), out)
                labels = {"name": name, "threads": threads}
                ways.append(Way(labels, [launch], lambda out, x=x, bias=bias, y=y: close(out, x, bias, y)))
            self.compare("variant", ways, captured=False, dtype=dtype, bytes=3 * x.nbytes + bias.nbytes)

    def op(self) -> None:
        for dtype in DTYPES:
            x, bias, y = self.inputs(dtype)
            ways = []
            for name in ("eager", "triton", *["cuda"] * (self.gpu is not None)):
                call = partial(kernels.add_mul_activation, x, bias, y, MULTIPLIER, "sigmoid", backend=name)
                ways.append(Way({"name": name}, [call], lambda out, x=x, bias=bias, y=y: close(out, x, bias, y, 2)))
            self.compare("op", ways, captured=False, dtype=dtype, bytes=3 * x.nbytes + bias.nbytes)

    def ncu(self) -> None:
        if self.gpu:
            self.extra["ncu"] = run_ncu()
            print("ncu      ", len(self.extra["ncu"]["lines"]), "lines", self.extra["ncu"]["why"], flush=True)

    def sanitizer(self) -> None:
        if self.gpu:
            self.extra["sanitizer"] = run_sanitizer()
            print("sanitizer", self.extra["sanitizer"], flush=True)

    def launch_once(self) -> None:
        """only start each step and each variant in float32, once: what ncu is given"""
        x, bias, y = self.inputs("float32")
        out = torch.empty_like(x)
        for name in STEPS:
            self.library.step(name, x, bias, out)
        for name in VARIANTS:
            self.library.variant(name, 256, x, bias, y, out)
        self.synchronize()

    def count(self) -> None:
        """count instructions by nvcc, and save them in traces/compiled/cuda_steps.json: needs no GPU"""
        print("saved", counting.save(counting.count()))


def close(out: Tensor, x: Tensor, bias: Tensor, y: Tensor, roundings: int = 1) -> bool:
    """Whether out is the sigmoid, to within some roundings of its dtype and what the fast functions are off by. Eager
    rounds in between, which the sigmoid makes smaller: 2^-8 of a sum of up to some 8 is 1/4 of it at most."""
    exact = torch.sigmoid(x.double() + MULTIPLIER * y.double() + bias.double())
    allowed = 1e-6 if x.dtype == torch.float32 else (2**-8 if roundings == 1 else 2**-6)
    return bool((out.double() - exact).abs().max() <= allowed)


# ------------------------------------------------------------------------------------------- what the GPU's tools say


def ncu_command(ncu: str = "ncu", python: str = "python") -> list[str]:
    names = "|".join([*STEPS, *(f"{name}_float32" for name in VARIANTS)])
    chosen = ["--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"]
    return [ncu, *chosen, "--metrics", ",".join(METRICS), python, "-m", "lessons.n10_cuda_kernels", "launch_once"]


def run_ncu() -> dict:
    """command, lines: what it prints, without what names this machine; why: it measured nothing ('' if it did)."""
    shown = " ".join(ncu_command())
    ncu = find_ncu()
    if ncu is None:
        return {"command": shown, "lines": [], "why": "ncu is not here"}
    text = output(ncu_command(ncu, sys.executable))
    return {"command": shown, **ncu_lines(text)}


def output(command: Sequence, **environment: str) -> str:
    """What a command prints, or why it did not end."""
    try:
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, errors="replace", timeout=SECONDS,
            cwd=KERNELS.parent, check=False, env=os.environ | environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"ERR {type(error).__name__}"
    return done.stdout + done.stderr


def counted(lines: Sequence[str]) -> dict[str, dict[str, float]]:
    """{kernel: {metric: value}} of what ncu printed."""
    found: dict[str, dict[str, float]] = {}
    current: dict[str, float] = {}
    for text in lines:
        head = re.match(r"\s*(\w+)(?:\(.*\))?\s*\(\d+, \d+, \d+\)x\(", text)
        if head:
            current = found.setdefault(head[1], {})
            continue
        words = text.split()
        if len(words) in (2, 3) and words[0] in METRICS:  # requests have no unit
            scale = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}.get(words[1], 1)
            current[words[0]] = scale * float(words[-1].replace(",", ""))
    return found


NO_BARRIER = """
__global__ void reversed(const float* x, float* out, int n) {
    __shared__ float part[256];
    part[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = part[255 - threadIdx.x];
}
void launch(const float* x, float* out, int n) { reversed<<<1, 256>>>(x, out, n); }
"""


def off_by_one() -> str:
    """The scalar kernel with a guard that lets one thread too many through."""
    return texts.launching("scalar").replace("i < n", "i <= n")


def run_sanitizer() -> dict:
    """What compute-sanitizer says of two broken kernels, memcheck and racecheck: its lines that begin with =."""
    found = {}
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", os.defpath),
                                                                   "/usr/local/cuda/bin")))
    numbers = np.ones((5, 200), np.float32)
    for kind, source, buffers, integers in (
        ("memcheck", off_by_one(), [numbers, numbers[0], numbers.copy()], (200, 1000)),
        ("racecheck", NO_BARRIER, [numbers.reshape(-1)[:256], numbers.reshape(-1)[:256].copy()], (256,)),
    ):
        if tool is None:
            found[kind] = ["compute-sanitizer is not here"]
            continue
        with tempfile.TemporaryDirectory() as folder:
            request = Path(folder) / "request"
            request.write_bytes(programs.request_of(buffers, integers)[1])
            program = programs.build(source, gpu=True)
            command = [tool, "--tool", kind, program, request, Path(folder) / "response"]
            text = output(command, EXACT="1")
        lines = [re.sub(r"0x[0-9a-f]{6,}", "0x…", each) for each in text.splitlines() if each.startswith("=====")]
        found[kind] = [each for each in lines if "/" not in each][:20] or [text[-300:]]
    return found


main = CudaSteps.main
