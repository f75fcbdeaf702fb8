"""tiled.cuh, the product in CUDA: compiled for the GPU here, and run on the host under ThreadSanitizer."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kernels import runtime
from kernels.runtime import KERNELS
from lessons.shared import sanitizer

SOURCE, MAIN = (Path(__file__).with_name(name) for name in ("tiled.cuh", "tiled_main.cu"))
LAST = re.compile(r"\n[^\n]*// now nobody reads[^\n]*")  # the second barrier's line
SECONDS = 60


def show() -> None:
    """Print the kernel, from its first line on."""
    print(_kernel().rstrip())


def _kernel() -> str:
    """The text from `extern "C"` on, with which what PyTorch gives to NVRTC should begin."""
    return SOURCE.read_text().partition("#endif\n\n")[2]


def compiled(pad: int) -> Callable[[Tensor, Tensor, Tensor], None]:
    """(x, weight, out) → launches the kernel, whose rows of b are 32 + pad numbers apart; compiled by NVRTC."""
    kernel = torch.cuda._compile_kernel(_kernel().replace("PAD", str(pad)), "tiled")

    def run(x: Tensor, weight: Tensor, out: Tensor) -> None:
        (M, K), N = x.shape, len(weight)
        kernel(grid=(-(-N // 32), -(-M // 32), 1), block=(32, 32, 1), args=[x, weight, out, M, N, K])

    return run


def _binary(folder: str, barrier: bool, *compiler: str) -> Path:
    text = SOURCE.read_text()
    copy = Path(folder, "tiled.cuh")
    copy.write_text(text if barrier else LAST.sub("", text))
    out = Path(folder, "tiled")
    subprocess.run(
        [*compiler, f"-I{KERNELS}", f'-DTILED="{copy}"', str(MAIN), "-o", str(out)],
        check=True, capture_output=True, text=True, timeout=SECONDS,
    )
    return out


def on_host(barrier: bool = True) -> list[str]:
    """What the run under ThreadSanitizer prints; barrier: with the second one. RuntimeError: no g++ is here, or what it
    built did not run to its end."""
    gcc = runtime.compiler_program()
    flags = "-x", "c++", "-std=c++20", "-O1", "-g1", "-pthread", "-fsanitize=thread"
    with tempfile.TemporaryDirectory() as folder:
        binary = _binary(folder, barrier, gcc, *flags)
        command = [*_fixed_addresses(), binary]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if not re.search(r"\d+ of \d+ numbers are wrong", done.stdout):
        raise RuntimeError(f"ThreadSanitizer: {(done.stderr + done.stdout).strip()[:200]}")
    return (done.stderr + done.stdout).splitlines()


def _fixed_addresses() -> list[str]:
    """ThreadSanitizer wants memory where it expects it; a container may forbid to ask for that."""
    fixed = ["setarch", "-R"]
    allowed = shutil.which("setarch") and subprocess.run([*fixed, "true"], capture_output=True).returncode == 0
    return fixed if allowed else []


def race(lines: list[str]) -> list[str]:
    """The first race in ThreadSanitizer's report: its two accesses, each with its line of the kernel and that line's
    text, as far as the report names it; then what the program itself says of its result."""
    text, accesses = LAST.sub("", SOURCE.read_text()).splitlines(), []
    for number, line in enumerate(lines):
        access = re.match(r"\s*(Previous )?(read|write) of size.*by (thread T\d+|main thread)", line, re.I)
        if access and len(accesses) < 2:
            where = re.search(r"tiled\.cuh:(\d+)", " ".join(lines[number + 1 : number + 4]))
            at = f"line {where[1]}: {text[int(where[1]) - 1].strip()}" if where else "a line that is not named"
            accesses.append(f"{access[1] or ''}{access[2]}".lower() + f" by {access[3]}, {at}")
    if any("ThreadSanitizer: data race" in line for line in lines):
        verdict = "data race:"
    elif lines[-1].startswith("0 of"):
        verdict = "no data race"
    else:  # seen in a container that forbids what ThreadSanitizer needs
        verdict = "ThreadSanitizer reports nothing on this machine, and yet"
    return [verdict, *accesses, lines[-1]]


def racecheck() -> tuple[list[str], str]:
    """(what compute-sanitizer's racecheck prints of the kernel without its second barrier, '' or why it did not)."""
    if (nvcc := runtime.nvcc()) is None:
        return [], "nvcc is not here"
    try:
        with tempfile.TemporaryDirectory() as folder:
            binary = _binary(folder, False, str(nvcc), "-arch=native", "-std=c++17", "-lineinfo")
            printed = sanitizer.printed("racecheck", [binary], "--racecheck-report", "analysis")
            printed = printed.replace(f"{folder}/", "")
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return [], f"{type(error).__name__}: {str(error)[:200]}"
    lines = []
    for line in printed.splitlines():
        if re.search(r"race|access|SUMMARY|wrong", line, re.I):
            line, other = re.sub(r"^=+ ", "", line.rstrip()), r"\s+and .*access"
            if not (lines and re.match(other, line) and re.match(other, lines[-1])):  # of many, a race's first
                lines.append(line)
    return lines[:12], "" if lines else "it said nothing"
