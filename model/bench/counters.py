"""What binds our kernels, as Nsight Compute counts it: `python -m model.bench.counters`.

    python -m model.bench.counters [--cases look-ups,update,whole,step] [--save]

On a GPU, where `ncu` is. Each launch is a line: the time that ncu takes for it, at the GPU's own clock and from cold
caches; of what each can do, the percentage that SMs, the L2 and memory were used; occupancy, registers; and what warps
wait for most, in ncu's words.

    look-ups   lookup_interact and its gradients, 65,536 rows, 26 tables of 16 numbers, tf32
    update     SGD's update of these tables: with bits that repeat, the sort and the walk; and by atomics
    whole      dlrm_forward of `main` in tf32, 128 rows by clusters and 2,048 by pairs; dlrm_forward_kept
    step       a training step of `main`, 2,048 rows, SGD, tf32, launch by launch (captured, the same launches)
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.bench.counters")

import argparse
import csv
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

import kernels
from data.cli import Parser
from kernels.measure import records
from kernels.ops.dlrm.op import KEPT
from kernels.ops.embedding_bags.bench import HEIGHTS
from kernels.ops.fused_mlp import packing
from model.bench import recorded
from model.bench.errors import RELU
from model.bench.step_memory import drawn
from model.bench.trainer import Trainer
from model.config import Precision, TableOptimizer, preset
from model.device import settings

NAME = "counters"  # of its file in traces/results/<gpu>/
SECONDS = 150
SECTIONS = ("SpeedOfLight", "Occupancy", "LaunchStats", "WarpStateStats")
# ncu's names → the record's.
METRICS = {
    "Duration": "us", "Compute (SM) Throughput": "sm_percent", "L2 Cache Throughput": "l2_percent",
    "L1/TEX Cache Throughput": "l1_percent", "DRAM Throughput": "dram_percent", "SM Frequency": "ghz",
    "Achieved Occupancy": "occupancy_percent", "Registers Per Thread": "registers",
}
UNITS = {  # whose factor is not 1
    "ns": 1e-3, "nsecond": 1e-3, "ms": 1e3, "msecond": 1e3, "hz": 1e-9, "Hz": 1e-9, "Mhz": 1e-3, "MHz": 1e-3
}
STALL = re.compile(r"spends ([\d.]+) cycles being stalled (.+?)\. .*?about ([\d.]+)%", re.DOTALL)
BETWEEN = "spin_kernel"  # the marker before each case: torch.cuda._sleep


def look_ups(device: torch.device) -> Iterator[Callable]:
    rows, width = 65536, 16
    tables = torch.randn(sum(HEIGHTS), width, device=device)
    starts = torch.tensor([0, *HEIGHTS], device=device).cumsum(0)
    ids = torch.stack([torch.randint(height, (rows,), device=device) for height in HEIGHTS], 1)
    dense = torch.randn(rows, width, device=device)
    given = dense, tables, starts, ids
    grad = torch.randn_like(kernels.lookup_interact(*given, pad_to=8, precision="tf32", backend="cuda"))
    yield lambda: kernels.lookup_interact(*given, pad_to=8, precision="tf32", backend="cuda")
    yield lambda: kernels.lookup_interact_gradients(grad, *given, precision="tf32", backend="cuda")


def update(device: torch.device) -> Iterator[Callable]:
    rows, width = 65536, 16
    tables = torch.randn(sum(HEIGHTS), width, device=device)
    starts = torch.tensor([0, *HEIGHTS], device=device).cumsum(0)
    ids = torch.stack([torch.randint(height, (rows,), device=device) for height in HEIGHTS], 1)
    grad = torch.randn(rows, len(HEIGHTS), width, device=device)
    given = tables, starts, ids, grad, 0.01
    yield lambda: kernels.embedding_bags_sgd_(*given, backend="cuda")
    yield lambda: kernels.embedding_bags_sgd_(*given, deterministic=False, backend="cuda")


def whole(device: torch.device) -> Iterator[Callable]:
    shape, heights = preset("main").model, [min(height, 1_000_000) for height in HEIGHTS]
    widths = shape.bottom, (shape.bottom[-1] + len(heights) * (len(heights) + 1) // 2, *shape.top)
    pairs = [[*itertools.pairwise(of_mlp)] for of_mlp in widths]
    layers = [
        [torch.randn(b, *(() if is_bias else (a,)), device=device) / a**0.5 for a, b in of_mlp]
        for of_mlp in pairs for is_bias in (False, True)
    ]
    tables = [torch.randn(height, shape.embedding_dim, device=device) for height in heights]
    for rows in (128, 2048):
        ids = [torch.randint(height, (rows,), device=device) for height in heights]
        dense = torch.randn(rows, shape.bottom[0], device=device)
        given = dense, tables, ids, None, *layers, *RELU, "tf32"
        yield lambda given=given: kernels.dlrm_forward(*given, backend="cuda")
    buffers = packing.copied(*layers[:2]), packing.copied(*layers[2:])
    kept = dense, tables, ids, *buffers, *("-".join(map(str, of_mlp)) for of_mlp in widths), *RELU
    yield lambda: KEPT.call("cuda", *kept)


def step(device: torch.device) -> Iterator[Callable]:
    heights = tuple(min(height, 1_000_000) for height in HEIGHTS)
    shape = replace(preset("main").model, cardinalities=heights)
    trainer = Trainer("fused graph", TableOptimizer.SGD, shape, 2048, device, Precision.TF32)
    batch = drawn(2048, shape.bottom[0], heights, torch.Generator().manual_seed(0), device)
    trainer.step(*batch)  # which compiles; the first steps are not captured
    yield lambda: trainer.step(*batch)


# What each gives, and the names of that, in order.
CASES = {
    "look-ups": (look_ups, ("lookup_interact", "its gradients")),
    "update": (update, ("update", "update by atomics")),
    "whole": (whole, ("dlrm_forward, 128 rows", "dlrm_forward, 2048 rows", "dlrm_forward_kept, 2048 rows")),
    "step": (step, ("step",)),
}


def launch(names: Sequence[str]) -> None:
    """What ncu is given: each case once, behind a marker."""
    device = torch.device("cuda")
    with settings(0, Precision.TF32):
        for name in names:
            works, of = CASES[name]
            for work, _ in zip(works(device), of, strict=True):
                if name != "step":
                    with torch.no_grad():
                        work()  # which compiles
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                torch.cuda._sleep(1)
                with torch.set_grad_enabled(name == "step"):
                    work()
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
            torch.cuda.empty_cache()


def command(ncu: str, python: str, names: Sequence[str]) -> list[str]:
    sections = [word for name in SECTIONS for word in ("--section", name)]
    program = [python, "-m", f"model.bench.{NAME}", "--launch", "--cases", ",".join(names)]
    return [ncu, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "details", *sections,
            *program]


def counted(text: str, cases: Sequence[str]) -> list[dict]:
    """A row for each launch, of ncu's table; cases: the names behind the markers, in order."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches: dict[str, dict] = {}
    for row in csv.DictReader(lines[begin:]):
        own = launches.setdefault(row["ID"], {"kernel": short(row["Kernel Name"]), "stalls": []})
        if (name := METRICS.get(row["Metric Name"] or "")) and row["Metric Value"]:
            own[name] = float(row["Metric Value"].replace(",", "")) * UNITS.get(row["Metric Unit"], 1.0)
        if found := STALL.search(row.get("Rule Description") or ""):
            cycles, what, share = found.groups()
            own["stalls"].append(f"{what} ({float(cycles):.1f} cycles, {float(share):.0f} %)")
    rows, place = [], -1
    for own in launches.values():
        if BETWEEN in own["kernel"]:
            place += 1
        else:
            rows.append({"case": cases[place] if 0 <= place < len(cases) else "?", **own, "match": "ok"})
    return rows


def short(name: str) -> str:
    """A kernel's name without its arguments and template's, and with one namespace at most."""
    head = re.sub(r"^(void|static) ", "", name)
    head = head.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    return "::".join(re.split(r"[<(]", head, maxsplit=1)[0].split("::")[-2:]) or name[:60]


def line(row: Mapping) -> str:
    percent = " ".join(f"{row.get(f'{part}_percent', 0):5.1f}" for part in ("sm", "l1", "l2", "dram", "occupancy"))
    text = f"{row['case']:24} {row['kernel'][:44]:44} {row.get('us', 0):8.2f} µs  {percent}"
    return f"{text}  {row.get('registers', 0):3.0f}  {'; '.join(row['stalls'])[:120]}"


HEAD = f"{'case':24} {'kernel':44} {'':11}  SM %  L1 %  L2 % mem % occ %  reg  waits most for"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if nothing was counted."""
    parser = Parser(prog=f"python -m model.bench.{NAME}", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=_cases, default=list(CASES), metavar="CASE,…", help=", ".join(CASES))
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{NAME}.json")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)  # what ncu is to count
    options = parser.parse_args(arguments)
    if options.save and options.cases != list(CASES):
        parser.error("--save: a part of the cases is not saved over the record of all")
    if options.launch:
        launch(options.cases)
        return 0
    ncu = shutil.which("ncu", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin")))
    if ncu is None or not torch.cuda.is_available():
        print(f"model.bench.{NAME}: {'no CUDA device' if ncu else 'ncu is neither on PATH nor in /usr/local/cuda/bin'}")
        return 2
    done = subprocess.run(
        command(ncu, sys.executable, options.cases), capture_output=True, text=True, errors="replace", check=False,
        timeout=SECONDS, cwd=records.RESULTS.parents[1],
    )
    rows = counted(done.stdout, [what for name in options.cases for what in CASES[name][1]])
    print(HEAD, *map(line, rows), sep="\n")
    if not rows or done.returncode:
        print(*(done.stdout + done.stderr).splitlines()[-20:], sep="\n", file=sys.stderr)
        return 1
    if options.save:
        print(recorded.save(NAME, rows, ncu=" ".join(command("ncu", "python", list(CASES)))))
    return 0


def _cases(text: str) -> list[str]:
    names = text.split(",")
    if not {*names} <= {*CASES}:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(CASES)}, joined by commas, got {text!r}")
    return names
