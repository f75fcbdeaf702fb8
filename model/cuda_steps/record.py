"""What the notebook on CUDA kernels says in times: `python -m model.cuda_steps --save`, on a GPU with nvcc.

    step       add_relu in float32: a number a thread; 16 after each other; 16 apart; 16, four at a time
    variant    sigmoid(x + multiplier · y + bias), 16 bytes a thread: one thing changed at a time, in float32 and
               bfloat16; threads: of a block
    op         the same by eager PyTorch, by our Triton kernel, and by our CUDA kernel
    copy       PyTorch's copy of 1 GiB
    ncu        instructions that warps execute, and sectors, as the GPU counts them
    sanitizer  what compute-sanitizer says of a kernel with a wrong guard, and of one without its barrier

Saved in traces/results/<gpu>/cuda_steps.json. What needs no GPU, `--count` writes to traces/compiled/cuda_steps.json.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import kernels
from kernels.dispatch import extension
from kernels.dispatch.extension import load_library
from kernels.measure.clock import percentiles
from kernels.runtime import KERNELS
from model.cuda_steps import programs
from model.cuda_steps.counting import STEPS, VARIANTS
from model.gpu.record import Clock, find_ncu, ncu_lines
from model.recorder import head

NAME = "cuda_steps"
PARTS = ("step", "variant", "op", "copy", "ncu", "sanitizer")
COLUMNS, MULTIPLIER = 512, 0.5
THREADS = (64, 128, 256, 512, 1024)
ROWS, FEW = 65536, 8  # FEW: to see that it runs, without a GPU
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
            NAME, programs.HERE / "steps.cu", cache=extension.EXTENSIONS, include=(KERNELS,),
            flags=extension.CUDA_FLAGS, environment={"TORCH_CUDA_ARCH_LIST": arch},
        )  # fmt: skip
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
        )  # fmt: skip
        if error:
            raise RuntimeError(f"{name}, {threads} threads: CUDA error {error}")


class OnHost:
    """In its place without a GPU: the steps through the host build, the variants by PyTorch."""

    def step(self, name: str, x: Tensor, bias: Tensor, out: Tensor) -> None:
        program = programs.build(programs.launching(name, STEPS[name]))
        buffers = [each.numpy() for each in (x, bias, out)]
        found = programs.run(program, buffers, (x.shape[1], x.numel()))
        out.view(-1).copy_(torch.from_numpy(found.buffers[2][0]))

    def variant(self, name: str, threads: int, x: Tensor, bias: Tensor, y: Tensor, out: Tensor) -> None:
        out.copy_(torch.sigmoid(x.float() + MULTIPLIER * y.float() + bias.float()))


class Recorder:
    """Measures the parts; rows are printed as they come, and a part that fails does not take the others along."""

    def __init__(self, device: torch.device, rows: int):
        self.device, self.count = device, rows
        self.clock = Clock(device)
        self.library = Library() if device.type == "cuda" else OnHost()
        self.generator = torch.Generator(device).manual_seed(0)
        self.rows: list[dict] = []
        self.said: dict[str, dict] = {}

    def draw(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device).to(dtype)

    def add(self, times: Sequence[float] | None, right: bool, **labels) -> None:
        row = labels | {"match": "ok" if right else "FAILED: the result is wrong"}
        if times and right:
            row |= dict(zip(("us_p20", "us_p50", "us_p80"), percentiles(list(times)), strict=True))
        self.rows.append(row)
        print(line(row), flush=True)

    def measure(self, parts: Sequence[str]) -> None:
        for part in parts:
            try:
                getattr(self, part)()
            except Exception as error:
                traceback.print_exc()
                what = f"{type(error).__name__}: {error}".splitlines()[0]
                self.rows.append({"part": part, "match": f"FAILED: {what}"})
            if self.clock.gpu:
                self.clock.gpu.clear()

    def step(self) -> None:
        x, bias = self.draw(self.count, COLUMNS), self.draw(COLUMNS)
        expected, out = torch.relu(x + bias), torch.empty_like(x)
        launches, right = {}, {}
        for name in STEPS:
            out.fill_(float("nan"))
            launches[name] = partial(self.library.step, name, x, bias, out)
            launches[name]()
            right[name] = torch.equal(out, expected)
        for name, times in self.clock.times(launches).items():
            self.add(times, right[name], part="step", name=name, bytes=2 * x.nbytes + bias.nbytes)

    def inputs(self, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
        """x, bias, y"""
        kind = DTYPES[dtype]
        x, y = (self.draw(self.count, COLUMNS, dtype=kind) for _ in range(2))
        return x, self.draw(COLUMNS, dtype=kind), y

    def variant(self) -> None:
        for dtype in DTYPES:
            x, bias, y = self.inputs(dtype)
            out = torch.empty_like(x)
            launches, right = {}, {}
            wanted = [(name, 256) for name in VARIANTS] + [("base", n) for n in THREADS if n != 256]
            for key in wanted:
                out.fill_(float("nan"))
                launches[key] = partial(self.library.variant, *key, x, bias, y, out)
                launches[key]()
                right[key] = close(out, x, bias, y)
            for (name, threads), times in self.clock.times(launches).items():
                self.add(
                    times, right[name, threads], part="variant", name=name, threads=threads, dtype=dtype,
                    bytes=3 * x.nbytes + bias.nbytes,
                )  # fmt: skip

    def op(self) -> None:
        ours = ("triton", "cuda") if self.device.type == "cuda" else ("triton",)
        for dtype in DTYPES:
            x, bias, y = self.inputs(dtype)
            launches = {
                name: partial(kernels.add_mul_activation, x, bias, y, MULTIPLIER, "sigmoid", backend=name)
                for name in ("eager", *ours)
            }
            right = {name: close(launch(), x, bias, y, 2) for name, launch in launches.items()}
            for name, times in self.clock.times(launches).items():
                self.add(times, right[name], part="op", name=name, dtype=dtype, bytes=3 * x.nbytes + bias.nbytes)

    def copy(self) -> None:
        if self.clock.gpu is not None:
            row = self.clock.gpu.copy(NAME)
            self.rows.append({"part": "copy", "bytes": row.bytes, "us_p20": row.us_p20, "us_p50": row.us_p50,
                              "us_p80": row.us_p80, "match": row.match})  # fmt: skip

    def ncu(self) -> None:
        if self.device.type == "cuda":
            self.said["ncu"] = run_ncu()
            print("ncu", len(self.said["ncu"]["lines"]), "lines", self.said["ncu"]["why"], flush=True)

    def sanitizer(self) -> None:
        if self.device.type == "cuda":
            self.said["sanitizer"] = run_sanitizer()
            print("sanitizer", self.said["sanitizer"], flush=True)


def close(out: Tensor, x: Tensor, bias: Tensor, y: Tensor, roundings: int = 1) -> bool:
    """Whether out is the sigmoid, to within some roundings of its dtype and what the fast functions are off by. Eager
    rounds in between, which the sigmoid makes smaller: 2^-8 of a sum of up to some 8 is 1/4 of it at most."""
    exact = torch.sigmoid(x.double() + MULTIPLIER * y.double() + bias.double())
    allowed = 1e-6 if x.dtype == torch.float32 else (2**-8 if roundings == 1 else 2**-6)
    return bool((out.double() - exact).abs().max() <= allowed)


def line(row: dict) -> str:
    labels = " ".join(f"{name} {row[name]}" for name in ("name", "threads", "dtype") if row.get(name) is not None)
    shown = ""
    if "us_p50" in row:
        shown = f"{row['us_p50']:.2f} µs ({row['us_p20']:.2f} to {row['us_p80']:.2f})"
        shown += f", {row['bytes'] / row['us_p50'] / 1e3:,.0f} GB/s"
    return f"{row['part']:8} {labels:45} {shown}  {row['match']}"


# ------------------------------------------------------------------------------------------- what the GPU's tools say


def launch_once(device: torch.device, rows: int = ROWS) -> None:
    """Each step and each variant in float32, once: what ncu is given."""
    recorder = Recorder(device, rows)
    x, bias, y = recorder.inputs("float32")
    out = torch.empty_like(x)
    for name in STEPS:
        recorder.library.step(name, x, bias, out)
    for name in VARIANTS:
        recorder.library.variant(name, 256, x, bias, y, out)
    if device.type == "cuda":
        torch.cuda.synchronize()


def ncu_command(ncu: str = "ncu", python: str = "python") -> list[str]:
    names = "|".join([*STEPS, *(f"{name}_float32" for name in VARIANTS)])
    chosen = ["--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"]
    return [ncu, *chosen, "--metrics", ",".join(METRICS), python, "-m", "model.cuda_steps", "launch"]


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
        )  # fmt: skip
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
    return programs.launching("scalar").replace("i < n", "i <= n")


def run_sanitizer() -> dict:
    """What compute-sanitizer says of two broken kernels, memcheck and racecheck: its lines that begin with =."""
    found = {}
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", os.defpath),
                                                                   "/usr/local/cuda/bin")))  # fmt: skip
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


def record(device: torch.device, parts: Sequence[str] = PARTS, rows: int = ROWS) -> dict:
    """What is saved in traces/results/<gpu>/cuda_steps.json."""
    recorder = Recorder(device, rows)
    recorder.measure(parts)
    return head(NAME, "python -m model.cuda_steps") | {**recorder.said, "rows": recorder.rows}
