"""What a launch costs on a GPU, microseconds of the caller's: from Python by turns, and from C++.

The kernel is x += 1 on 1,024 elements. LAUNCHES of them are made without waiting, few enough that the queue does not
fill; the time is the median of REPEATS, with the least and the greatest.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..runtime import KERNELS
from . import compile as compiling
from .embed import embed
from .program import load

LAUNCHES, REPEATS = 500, 21
FUNCTION = f"{__package__}.bench_kernel:add_one"


def main(out: Path | None = None) -> int:
    """Print the times, and write them to `out` as JSON."""
    if not torch.cuda.is_available():
        raise RuntimeError("a launch's cost is measured on a GPU: torch sees none here")
    with tempfile.TemporaryDirectory() as folder:
        times = measure(Path(folder))
    rows = {name: {"us": statistics.median(each), "low": min(each), "high": max(each)} for name, each in times.items()}
    for name, row in rows.items():
        print(f"{name:28} {row['us']:6.2f} µs  ({row['low']:.2f} to {row['high']:.2f})")
    if out is not None:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "launches": LAUNCHES}
        out.write_text(json.dumps({**about, "rows": rows}, indent=1))
    return 0


def measure(folder: Path) -> dict[str, list[float]]:
    """name → microseconds a launch, of each repeat."""
    from .bench_kernel import add_one

    major, minor = torch.cuda.get_device_capability()
    arch = 10 * major + minor
    made = compiling.by_triton(FUNCTION, "add_one", arch, {"x_ptr": "*fp32:16", "n": "i32"},
                               {"BLOCK": 1024, "num_warps": 4})
    image = compiling.write(folder, "add_one", arch, *made)
    x = torch.zeros(1024, device="cuda")
    ours = load(image)["add_one"]
    ways: dict[str, Callable[[], object]] = {
        "x + 1": lambda: x + 1,
        "x.add_(1)": lambda: x.add_(1),
        "Triton's launcher": lambda: add_one[(1,)](x, 1024, BLOCK=1024, num_warps=4),
        "kernels.cubin, from Python": lambda: ours(1, None, x, 1024),
    }
    ours(1, None, x, 1024)
    if x.sum().item() != 1024:
        raise RuntimeError("the kernel did not add 1 to every element")
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(-1, REPEATS):  # the first one warms up
        for name, call in ways.items():
            start = time.perf_counter()
            for _ in range(LAUNCHES):
                call()
            passed = 1e6 * (time.perf_counter() - start) / LAUNCHES
            torch.cuda.synchronize()
            if repeat >= 0:
                times[name].append(passed)
    times["kernels.cubin, from C++"] = _from_cpp(folder, image)
    return times


def _from_cpp(folder: Path, image: Path) -> list[float]:
    _, bytes_ = embed("bench_images", [image], folder)
    program = folder / "bench"
    source = KERNELS / "cubin" / "bench.cpp"
    for command in (
        ["g++", "-std=c++17", "-O2", f"-I{KERNELS}", f"-I{folder}", source, bytes_, "-ldl", "-o", program],
        [program, str(LAUNCHES), str(REPEATS)],
    ):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{done.stderr}")
    return [float(line) for line in done.stdout.split()]
