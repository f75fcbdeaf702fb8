"""The lesson's experiments on this machine: sectors counted access by access, sanitizers, a kernel by load_inline."""

from __future__ import annotations

import ctypes
import io
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels import check, runtime
from kernels.check.host import programs
from kernels.check.host.programs import BUILD
from kernels.dispatch import build, core
from kernels.runtime import KERNELS
from lessons.n10_cuda_kernels import texts
from lessons.n10_cuda_kernels.counting import STEPS
from lessons.shared.timing import print_times


def sectors(name: str, rows: int = 16, columns: int = 512) -> tuple[float, float]:
    """(sectors that a warp's read of x touches, on average; those of a write to out) of a step, counted on the host."""
    program = programs.build(texts.launching(name, STEPS[name]))
    x = np.ones((rows, columns), np.float32)
    found = programs.run(program, [x, x[0], np.zeros_like(x)], (columns, rows * columns))
    assert found.status == "ok", found
    (reads, read, *_), _, (*_, writes, written) = found.counts
    return read / reads, written / writes


def show(name: str) -> None:
    """Print a kernel of steps.cu."""
    print(texts.text_of(name).rstrip())


def steps(rows: int | None = None) -> None:
    """µs of the steps on this machine's GPU; without one, the sectors that they touch, as the host build counts."""
    if runtime.device().type == "cuda" and runtime.nvcc():
        from lessons.n10_cuda_kernels.experiment import COLUMNS, Library

        library, rows = Library(), rows or 65536
        x, bias = torch.randn(rows, COLUMNS, device="cuda"), torch.randn(COLUMNS, device="cuda")

        def step(name: str, out: Tensor) -> Tensor:
            library.step(name, x, bias, out)
            return out

        print_times({name: partial(step, name, torch.empty_like(x)) for name in STEPS})
        return
    for name in STEPS:
        read, written = sectors(name)
        asked = f"{NEEDED[name]} hold what is asked for"
        print(f"{name:10} {read:3.0f} sectors a read of a warp, {written:3.0f} a write; {asked}")


NEEDED = {"scalar": 4, "strided": 4, "coalesced": 4, "wide": 16}  # sectors of 32 numbers, or of 32 float4

# ----------------------------------------------------------------------------------------------------------- sanitizers

PROGRAM = """#include "check/host/cuda_on_host.h"
{kernel}
int main() {{
    float *x, *bias, *out;
    cudaMalloc(&x, 1000 * sizeof(float));
    cudaMalloc(&bias, 200 * sizeof(float));
    cudaMalloc(&out, 1000 * sizeof(float));
    return int(launch_kernel(scalar, dim3(4), dim3(256), 0, nullptr, x, bias, out, 200, 1000));
}}
"""


def address_sanitizer(guard: str = "i < n") -> str:
    """What g++'s AddressSanitizer finds in the scalar kernel with this guard: as in the CMake test without a GPU."""
    kernel = "\n#line 1 \"kernel.cu\"\n" + texts.text_of("scalar").replace("i < n", guard)
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        file, program = Path(folder) / "main.cpp", Path(folder) / "program"
        file.write_text(PROGRAM.format(kernel=kernel))
        flags = ["-std=c++20", "-O1", "-g", "-w", "-fsanitize=address", f"-I{KERNELS}"]
        done = subprocess.run([programs.compiler(), *flags, file, "-o", program], capture_output=True, text=True)
        if done.returncode:
            return "AddressSanitizer is not here: " + done.stderr.splitlines()[-1].rsplit("/", 1)[-1]
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # nothing is freed above
        done = subprocess.run([program], capture_output=True, text=True, env=environment, check=False)
    form = r"AddressSanitizer: (\S+) on .*\n(\w+ of size \d+).*\n +#0 \S+ in (\w+).* \S+:(\d+)"
    said = re.search(form, done.stderr)
    if not said:
        return f"nothing found, exit status {done.returncode}"
    where = re.search(r"is located (\d+ bytes .*?region)", done.stderr)
    return f"{said[1]}: {said[2]}, {where[1]}, line {said[4]} of {said[3]}"


# ---------------------------------------------------------------------------------------------------------- load_inline

LAUNCHER = """
extern "C" int launch(const char* activation, const float* x, const float* bias, const float* y, float multiplier,
                      float* out, int columns, int n, cudaStream_t stream) {
    return int(with_activation(activation, [&](auto a) {
        dim3 grid(unsigned((n + 255) / 256));
        return launch_kernel(forward<decltype(a)::value>, grid, dim3(256), 0, stream, x, bias, y,
                             multiplier, out, columns, n);
    }));
}
"""


def inline(source: str) -> Callable[..., Tensor]:
    """f(x, bias, y, multiplier, activation) of a text with the kernel `forward`, built by load_inline: by nvcc on a
    GPU, else by g++ over check/host/cuda_on_host.h."""
    gpu = runtime.device().type == "cuda" and runtime.nvcc() is not None
    BUILD.mkdir(parents=True, exist_ok=True)
    file = BUILD / f"my_add_mul_activation{'.cu' if gpu else '.cpp'}"
    file.write_text(source + LAUNCHER)
    flags, environment = ("-O1", "-std=c++20", "-Wno-unknown-pragmas"), {}
    if gpu:
        flags = core.CUDA_FLAGS
        environment = {"TORCH_CUDA_ARCH_LIST": ".".join(map(str, torch.cuda.get_device_capability()))}
    start = time.monotonic()
    with redirect_stderr(io.StringIO()):  # it says that it builds
        built = build.load_library(
            "my_add_mul_activation", file, cache=BUILD, include=(KERNELS,), flags=flags, environment=environment
        )
    print(f"built by {'nvcc' if gpu else 'g++'} in {time.monotonic() - start:.1f} s")
    launch = ctypes.CDLL(str(built)).launch
    pointer, number = ctypes.c_void_p, ctypes.c_int
    launch.argtypes = [ctypes.c_char_p, *[pointer] * 3, ctypes.c_float, pointer, number, number, pointer]

    def function(x: Tensor, bias: Tensor, y: Tensor, multiplier: float = 1.0, activation: str = "relu") -> Tensor:
        x, bias, y = x.contiguous(), bias.contiguous(), y.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            stream = torch.cuda.current_stream().cuda_stream if gpu else None
            error = launch(activation.encode(), x.data_ptr(), bias.data_ptr(), y.data_ptr(), float(multiplier),
                           out.data_ptr(), x.shape[-1], x.numel(), stream)
            if error:
                raise RuntimeError(f"the launch failed with CUDA error {error}")
        return out

    return function


def check_float32(function: Callable[..., Tensor]) -> None:
    """Against eager on the float32 cases of add_mul_activation: odd shapes, layouts, NaN and Inf, each activation."""
    device = runtime.device() if runtime.nvcc() else torch.device("cpu")
    cases = [case for case in check.pointwise_cases() if case.dtype == torch.float32]
    check.check("add_mul_activation", function, device=device, cases=cases)
