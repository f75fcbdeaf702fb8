"""The lesson's experiments on this machine: what Triton makes of the steps for an H200, a race, a breakpoint, times."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from kernels import runtime
from model.config import Precision
from model.device import settings
from model.products import cuda
from model.products.launch import STEPS, Config
from model.times import print_times

ROOT = Path(__file__).resolve().parents[2]
STOPPING = "model.products.stopping"


@dataclass(frozen=True)
class Made:
    """registers: of a thread; shared: bytes of a program. tensor: instructions that multiply on tensor cores; ahead,
    by_tma: copies into shared memory by threads that need not wait, and by the SM's unit for copies."""

    name: str
    registers: int
    shared: int
    tensor: int
    ahead: int
    by_tma: int


@functools.cache
def compiled(*names: str, arch: int = 90) -> tuple[Made, ...]:
    """Steps for sm_<arch> in bfloat16, compiled in a process in which Triton does not interpret."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as here; here._print({names}, {arch})"],
        stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    return tuple(Made(**each) for each in json.loads(done.stdout.splitlines()[-1]))


def show_compiled(*names: str) -> None:
    """A line a step: what Triton makes of it here, for an H200, which need not be here."""
    print("                registers  shared KB  products on tensor cores  copies ahead  by TMA")
    for made in compiled(*names):
        print(f"{made.name:15} {made.registers:9}  {made.shared / 1024:9.0f}  {made.tensor:24}  {made.ahead:12}"
              f"  {made.by_tma:6}")  # fmt: skip


def times(size: int | None = None) -> None:
    """µs of PyTorch's product in float32 and in bfloat16, by turns."""
    device = runtime.device()
    size = size or (4096 if device.type == "cuda" else 256)
    a, b = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    with settings(0, Precision.FP32):
        print_times(
            {
                f"{size}³, float32": functools.partial(_product, a.float(), b.float()),
                f"{size}³, bfloat16": functools.partial(_product, a, b),
            },
            tolerance=0.02,
        )


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b.T


def race(barrier: bool) -> None:
    """tiled.cuh under ThreadSanitizer, on the host, with its second barrier or without."""
    try:
        print(*cuda.race(cuda.on_host(barrier)), sep="\n  ")
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"not run here: {error}")


def stop(*commands: str) -> None:
    """stopping.py in Triton's interpreter, with these commands for Python's debugger at its first breakpoint."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", STOPPING], input="\n".join([*commands, "q", ""]), capture_output=True, text=True,
        cwd=ROOT, env=environment | {"PYTHONBREAKPOINT": "pdb.set_trace"}, check=False,
    )  # fmt: skip
    answers = re.split(r"\(Pdb\) ", done.stdout)
    print("stopped before:", answers[0].rpartition("->")[2].strip())
    for command, answer in zip(commands, answers[1:], strict=False):
        shown = [line for line in answer.rstrip().splitlines() if not line.startswith(("> ", "-> "))]
        print("\n".join([f"(Pdb) {command}", *shown]))


# ------------------------------------------------------------------------------------------------------------------
# In the second process.


def _print(names: tuple[str, ...], arch: int) -> None:
    print(json.dumps([asdict(_compile(name, STEPS[name], arch)) for name in names]))


def _compile(name: str, config: Config, arch: int) -> Made:
    import tempfile

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from model.products import kernels

    types = {each: "*bf16" for each in ("x", "weight", "bias", "out")} | dict.fromkeys("MNK", "i32")
    constants = {"ROWS": config.rows, "COLUMNS": config.columns, "STEP": config.step, "GROUP": config.group,
                 "EPILOGUE": True}  # fmt: skip
    if config.kernel == "naive":
        kernel, constants = kernels.naive_kernel, {"STEP": config.step}
    elif config.kernel == "tiled":
        kernel, constants = kernels.tiled_kernel, constants | {"UNITS": config.units}
    else:
        kernel = kernels.persistent_kernel
        constants |= {"PARTS": config.parts, "FLATTEN": config.kernel == "persistent"}
        sides = {"x": (config.rows, config.step), "weight": (config.columns, config.step),
                 "out": (config.rows, config.columns // config.parts)}  # fmt: skip
        types |= {each: f"tensordesc<bf16[{a}, {b}]>" for each, (a, b) in sides.items()}
    aligned = {(n,): [["tt.divisibility", 16]] for n, each in enumerate(types.values()) if "desc" not in each}
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants, aligned)
    options = {"num_warps": config.warps, "num_stages": config.stages}
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    ptx = made.asm["ptx"]
    counts = [len(re.findall(word, ptx)) for word in
              (r"wgmma\.mma_async|mma\.sync", r"cp\.async\.c[ag]", r"cp\.async\.bulk\.tensor\S*\.global\.mbarrier")]
    return Made(name, int(re.search(r"REG:(\d+)", said.stdout)[1]), made.metadata.shared, *counts)
