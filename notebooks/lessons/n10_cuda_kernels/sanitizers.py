"""A kernel's text under a sanitizer: g++'s on the host, NVIDIA's compute-sanitizer on a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernels.check.host import programs
from kernels.check.host.programs import BUILD
from kernels.runtime import KERNELS
from lessons.shared import sanitizer

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


def address_sanitizer(kernel: str) -> str:
    """What g++'s AddressSanitizer finds in the kernel `scalar`, n = 1000: as in the CMake test without a GPU."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        file, program = Path(folder) / "main.cpp", Path(folder) / "program"
        file.write_text(PROGRAM.format(kernel=f'\n#line 1 "kernel.cu"\n{kernel}'))
        flags = ["-std=c++20", "-O1", "-g", "-w", "-fsanitize=address", f"-I{KERNELS}"]
        done = subprocess.run([programs.compiler(), *flags, file, "-o", program], capture_output=True, text=True)
        if done.returncode:
            return "AddressSanitizer is not here: " + done.stderr.splitlines()[-1].rsplit("/", 1)[-1]
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # nothing is freed above
        done = subprocess.run([program], capture_output=True, text=True, env=environment, check=False)
    form = r"AddressSanitizer: (\S+) on .*\n(\w+ of size \d+).*\n +#0 \S+ in (\w+).* \S+:(\d+)"
    match = re.search(form, done.stderr)
    if not match:
        return f"nothing found, exit status {done.returncode}"
    where = re.search(r"is located (\d+ bytes .*?region)", done.stderr)
    return f"{match[1]}: {match[2]}, {where[1]}, line {match[4]} of {match[3]}"


def compute_sanitizer(tool: str, source: str, buffers: Sequence[np.ndarray], integers: Sequence[int]) -> list[str]:
    """The lines in which compute-sanitizer's tool (memcheck, racecheck, …) speaks of a text's launch(), by nvcc."""
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "request"
        request.write_bytes(programs.request_of(buffers, integers)[1])
        command = [programs.build(source, gpu=True), request, Path(folder) / "response"]
        try:
            text = sanitizer.printed(tool, command, environment={"EXACT": "1"})
        except RuntimeError as error:
            return [str(error)]
    lines = [re.sub(r"0x[0-9a-f]{6,}", "0x…", line) for line in text.splitlines() if line.startswith("=====")]
    return [line for line in lines if "/" not in line][:20] or [text[-300:]]
