"""What a launch costs on a GPU, microseconds of the caller's: from Python by turns, and from C++.

The kernel is x += 1 on 1,024 elements. LAUNCHES of them are made without waiting, few enough that the queue does not
fill; the time is the median of REPEATS, with the least and the greatest.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

from .. import runtime
from ..measure import records
from ..runtime import KERNELS
from . import compile as compiling
from .embed import embed
from .program import load

LAUNCHES, REPEATS = 500, 21
FUNCTION = f"{__package__}.bench_kernel:add_one"


def main(save: bool = False) -> int:
    """Print the times; save: and record them in traces/results/<gpu>/launches.json."""
    if not torch.cuda.is_available():
        raise RuntimeError("a launch's cost is measured on a GPU: torch sees none here")
    with tempfile.TemporaryDirectory() as folder:
        record = record_of(measure(Path(folder)))
    for row in record["rows"]:
        print(f"{row['name']:28} {row['us']:6.2f} µs  ({row['low']:.2f} to {row['high']:.2f})")
    if save:
        print(records.save(record))
    return 0


def record_of(times: dict[str, list[float]]) -> dict:
    """What is recorded of the microseconds of each repeat."""
    versions = runtime.versions()
    return {
        "op": "launches",
        **{name: versions[name] for name in ("GPU", "driver", "torch", "triton", "CUDA", "Python")},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "launches": LAUNCHES, "repeats": REPEATS,
        "rows": [
            {"part": "launch", "name": name, "us": statistics.median(us), "low": min(us), "high": max(us),
             "match": "ok"}
            for name, us in times.items()
        ],
    }  # fmt: skip


def measure(folder: Path) -> dict[str, list[float]]:
    """name → microseconds a launch, of each repeat."""
    from .bench_kernel import add_one

    major, minor = torch.cuda.get_device_capability()
    arch = 10 * major + minor
    compiled = compiling.by_triton(FUNCTION, "add_one", arch, {"x_ptr": "*fp32:16", "n": "i32"},
                                   {"BLOCK": 1024, "num_warps": 4})
    image = compiling.write(folder, "add_one", arch, *compiled)
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
