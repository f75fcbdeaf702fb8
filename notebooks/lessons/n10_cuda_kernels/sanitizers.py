"""A kernel's text under g++'s AddressSanitizer."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from kernels.check.host import programs
from kernels.check.host.programs import BUILD
from kernels.runtime import KERNELS

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
