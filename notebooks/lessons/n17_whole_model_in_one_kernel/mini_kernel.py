"""The reader's kernel as a program to be judged, and as a function of tensors that Python calls."""

from __future__ import annotations

import ctypes
import io
import re
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path

import torch
from torch import Tensor

from kernels import runtime
from kernels.check.host.programs import BUILD
from kernels.dispatch import build, core
from kernels.runtime import KERNELS

HEIGHTS, WIDTH = (10, 20, 30), 4
LAYERS = ((13, 8), (8, WIDTH), (10, 8), (8, 1))  # (inputs, outputs): the bottom's, then the top's
ROOM = Path(__file__).resolve().parent
AROUND = (ROOM / "around.cu").read_text()
HOLE = "// <kernel>\n"
LINE_OF = {name: f'#line 1 "{name}"\n' for name in ("kernel", "launch")}
# What stands for launch() where Python calls: the current stream, and the error of the launch.
LAUNCHER = """
extern "C" int launch(const float* dense, const long long* ids, const float* const* tables,
                      const float* const* weights, const float* const* biases, const long long* heights, float* out,
                      long long batch, cudaStream_t stream) {
    Model model;
    for (int f = 0; f < 3; ++f) model.table[f] = tables[f], model.height[f] = int(heights[f]);
    for (int l = 0; l < 4; ++l) model.weight[l] = weights[l], model.bias[l] = biases[l];
    return int(launch_kernel(forward, dim3(unsigned((batch + 127) / 128)), dim3(128), 0, stream, dense, ids, model, out,
                             batch));
}
"""


def has_launch(kernel: str) -> bool:
    """Whether the text has a launch() of its own; a comment that speaks of one, or __launch_bounds__, is none."""
    without_comments = re.sub(r"//[^\n]*|/\*.*?\*/", " ", kernel, flags=re.S)
    return bool(re.search(r"\bvoid\s+launch\s*\(", without_comments))


def whole(kernel: str) -> str:
    """The text with the struct before it and launch() behind it, where it has no launch() of its own. Of an error the
    compiler names the line in the reader's text."""
    before, after = AROUND.split(HOLE)
    return f"{before}{LINE_OF['kernel']}{kernel.strip()}\n" + ("" if has_launch(kernel) else LINE_OF["launch"] + after)


def with_launcher(kernel: str) -> str:
    """The text with LAUNCHER behind it."""
    before, _ = AROUND.split(HOLE)
    return '#include "device/launch.cuh"\n' + before + kernel.strip() + "\n" + LAUNCHER


def inline(kernel: str) -> Callable[..., Tensor]:
    """f(dense, ids, tables, weights, biases) of a text with the kernel `forward`, built by load_inline: by nvcc on a
    GPU, else by g++ over check/host/cuda_on_host.h. RuntimeError: the text has a launch() of its own; it fails."""
    if has_launch(kernel):
        raise RuntimeError("inline() launches in blocks of 128 threads: give the kernel without launch()")
    gpu = runtime.device().type == "cuda" and runtime.nvcc() is not None
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / f"my_mini{'.cu' if gpu else '.cpp'}"
    file.write_text(with_launcher(kernel))
    flags, environment = ("-O1", "-std=c++20", "-Wno-unknown-pragmas"), {}
    if gpu:
        flags = core.NVCC_FLAGS
        environment = {"TORCH_CUDA_ARCH_LIST": ".".join(map(str, torch.cuda.get_device_capability()))}
    start = time.monotonic()
    with redirect_stderr(io.StringIO()):  # it says that it builds
        built = build.load_library(
            "my_mini", file, cache=BUILD, include=(KERNELS,), flags=flags, environment=environment
        )
    print(f"built by {'nvcc' if gpu else 'g++'} in {time.monotonic() - start:.1f} s")
    launch = ctypes.CDLL(str(built)).launch
    pointer = ctypes.c_void_p
    launch.argtypes = [*[pointer] * 7, ctypes.c_longlong, pointer]

    def function(
        dense: Tensor, ids: Tensor, tables: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor]
    ) -> Tensor:
        if (dense.device.type == "cuda") != gpu:
            raise RuntimeError(f"the kernel is built for {'the GPU' if gpu else 'the CPU'}; dense is on {dense.device}")
        out = dense.new_empty(len(dense), 1)
        lists = [(pointer * len(part))(*(tensor.data_ptr() for tensor in part)) for part in (tables, weights, biases)]
        heights = (ctypes.c_longlong * len(tables))(*map(len, tables))
        stream = torch.cuda.current_stream().cuda_stream if gpu else None
        error = launch(dense.data_ptr(), ids.data_ptr(), *lists, heights, out.data_ptr(), len(dense), stream)
        if error:
            raise RuntimeError(f"the launch failed with CUDA error {error}")
        return out

    return function
