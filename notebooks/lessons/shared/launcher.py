"""A generated CUDA source as a function: a notebook launches it in the open.

    launch = launcher(Source("read", text, threads=512))
    launch(132, weights, out, weights.numel())
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kernels import runtime
from kernels.device import source_launch
from kernels.device.source_launch import Source
from kernels.dispatch import core, nvrtc
from kernels.inductor import machine_code
from kernels.runtime import KERNELS


@functools.cache
def launcher(source: Source) -> Callable[..., None]:
    """launch(grid, *arguments): blocks, or a tuple of them; tensors, Strides and integers, the members of the kernel's
    struct, of eight bytes each. On a GPU NVRTC compiles the source at its first launch; without one g++ does, over the
    host's CUDA."""

    def launch(grid: int | tuple[int, ...], *arguments: Tensor | source_launch.Stride | int) -> None:
        blocks = (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
        if runtime.device().type != "cuda":
            return source_launch.launch(source, blocks, *arguments)
        numbers = (ctypes.c_int64 * len(arguments))(*map(source_launch._number, arguments))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(numbers))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        function, shared = ctypes.c_void_p(_loaded(source)), source.shared
        error = _driver().cuLaunchKernel(function, *blocks, source.threads, 1, 1, shared, stream, parameters, None)
        if error:
            raise RuntimeError(f"{source.name}: the launch failed with CUDA error {error}")

    return launch


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _loaded(source: Source) -> int:
    """The driver's handle of the kernel, on the current GPU."""
    core.load_core()
    compiled = nvrtc.compiled(nvrtc.Kernel(source, _arch()))
    return torch.ops.fused_kernels._load_cubin(compiled.path, compiled.name, compiled.shared, compiled.parameters)


def _arch() -> int:
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def registers(source: Source, arch: int = 90) -> tuple[int, int] | None:
    """Registers of a thread, and bytes of its stack, where what does not fit is spilled, as the compiled kernel has
    them; None: there is no compiler, or no cuobjdump. It takes no GPU."""
    cubin = _cubin(source, arch)
    text = cubin and machine_code.tool("cuobjdump", ["--dump-resource-usage"], cubin)
    found = text and re.search(r"REG:(\d+) STACK:(\d+)", text)
    return found and (int(found[1]), int(found[2]))


def _cubin(source: Source, arch: int) -> bytes | None:
    """By NVRTC, or else by nvcc."""
    if not nvrtc.why_not():
        return Path(nvrtc.compiled(nvrtc.Kernel(source, arch)).path).read_bytes()
    if not runtime.nvcc():
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cu"
        file.write_text(source.text)
        flags = ["-cubin", "-std=c++17", f"-arch=sm_{arch}{'a' * source.specific}", f"-I{KERNELS}"]
        subprocess.run([runtime.nvcc(), *flags, "-o", f"{file}bin", file], check=True, capture_output=True)
        return Path(f"{file}bin").read_bytes()
