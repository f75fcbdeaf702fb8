"""What several GPUs of a host measure: `python -m model.bench scale --measure`, and its record, scale.json.

torchrun starts a rank a GPU, once with one GPU and once with all, and each measures its cells one after another
(model.bench.scale.rank). A cell that does not end within its seconds, or that ends its process, has failed; torchrun is
then started anew for those that are left.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO

import torch

from data.cli import UserError
from data.synthetic import SyntheticConfig
from kernels import runtime
from kernels.measure import records, sources
from model.bench.scale.cells import CASE, FULL, TINY, Cell, Sizes, exchanges, large, references, steps, traced
from model.bench.scale.rates import NODE, Wires
from model.bench.steps import TOLERANCES
from model.bench.training import REORDERED_TIMES, write_rows
from model.config import Precision, TableOptimizer
from model.profiling.recording import today
from model.sharding.pieces import Wire

RECORD = "scale"
OPS = ("embedding_bags", "embedding_bags_update", "dot_interaction", "fused_mlp")
START = 240  # seconds of a torchrun's first cell: kernels may have to be built
EPOCH_SECONDS = 90
LEAVES = 45  # seconds in which a torchrun that was told to end does
LAST_LINES = 40  # of a torchrun that fails, for who wants to know more
SCORED = 4096  # rows of validation, and of test
NO_TIME = "no time was left"
SAME = ("rows", "precision", "optimizer", "graph")  # of steps that are compared
TIMES = ("ms", "ms_low", "ms_high", "rows_per_s")
LINK = Wires().nvlink
PROG = "python -m model.bench scale"
ROOT = records.RESULTS.parents[1]
LEAST_FACTOR = 1.6  # times the rows/s of one GPU that two must reach as a graph, with the larger batch
BF16 = 2.0**-8  # how far a loss may be off by vectors that are rounded so


def measure(
    device: torch.device, largest: int, seconds: float, done: Callable[[dict], None], traces: Path | None = None
) -> list[dict]:
    """All rows, each handed to `done` as it comes. largest: ids of the largest table. seconds: after so many no more
    cell begins. traces: where a trace of each rank's step goes, if they are wanted."""
    is_cuda, end = device.type == "cuda", time.monotonic() + seconds
    gpus = min(torch.cuda.device_count(), NODE) if is_cuda else 2
    if gpus < 2:
        raise UserError(f"--measure: expected two GPUs or more, found {gpus}")
    config, sizes, rows = SyntheticConfig(largest), FULL if is_cuda else TINY, []
    expected: dict[Cell, dict] = {}

    def note(row: dict) -> None:
        rows.append(row)
        done(row)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "data", sizes.epoch_rows, config)

        def measured(cells: Sequence[Cell], processes: int) -> Iterator[tuple[Cell, dict]]:
            todo = {"device": device.type, "data": str(folder / "data" / "train"), "sizes": asdict(sizes),
                    "cardinalities": config.cardinalities, "traces": str(traces)}
            return _measured(cells, processes, todo, folder, end)

        of_one = [*references(sizes, gpus, is_cuda), *steps(sizes, 1, is_cuda)]
        for cell, row in measured(of_one, 1):
            if cell.part == "reference":
                expected[cell] = row
            else:
                note(judged(row, cell, expected))
        parts = [steps, exchanges, *([traced] if traces else []), large]
        of_all = [cell for part in parts for cell in part(sizes, gpus, is_cuda)]
        for cell, row in measured(of_all, gpus):
            note(judged(row, cell, expected) if cell.part == "step" else row)
        for processes in (gpus, 1):
            note(_epoch(processes, device, sizes, folder, end))
    return rows


# The processes.


class Ended(Exception):
    """Why a cell has no rows."""


def _measured(
    cells: Sequence[Cell], processes: int, todo: dict, folder: Path, end: float
) -> Iterator[tuple[Cell, dict]]:
    """The rows of each cell, by so many ranks; of one that fails a row that says so."""
    left = list(cells)
    while left:
        file = Path(tempfile.mkdtemp(dir=folder)) / "cells"
        file.write_text(json.dumps(todo | {"cells": [asdict(cell) for cell in left]}))
        done = 0
        try:
            for rows in _by_ranks(left, processes, file, end):
                yield from ((left[done], row) for row in rows)
                done += 1
        except Ended as error:
            yield left[done], left[done].row() | {"match": f"FAILED: {error}"}
        left = left[done + 1 :]


def _by_ranks(cells: Sequence[Cell], processes: int, todo: Path, end: float) -> Iterator[list[dict]]:
    """The rows of one cell after another. Raises Ended where there are none of the next."""
    if time.monotonic() > end:
        raise Ended(NO_TIME)
    out, said = todo.with_suffix(".done"), todo.with_suffix(".said")
    out.touch()
    with said.open("w") as printed, _started(_torchrun(processes, "model.bench.scale.rank", todo, out), printed) as one:
        for number, cell in enumerate(cells):
            seconds = cell.seconds if number else START
            least = time.monotonic() + seconds
            while True:
                has_ended = one.poll() is not None  # before its lines are read
                if len(lines := re.findall(r".*\n", out.read_text())) > number:
                    yield json.loads(lines[number])
                    break
                if has_ended:
                    print(*said.read_text().splitlines()[-LAST_LINES:], sep="\n", file=sys.stderr)
                    raise Ended(why(said.read_text(), one.returncode))
                if time.monotonic() > min(least, end):
                    raise Ended(NO_TIME if end < least else f"does not end within {seconds} s")
                time.sleep(0.1)
        one.wait(LEAVES)


def _torchrun(processes: int, module: str, *arguments: object) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes, "-m", "--"]
    return [str(word) for word in (*command, module, *arguments)]


@contextmanager
def _started(command: Sequence[str], printed: IO) -> Iterator[subprocess.Popen]:
    """The process, which is ended with all that it has started."""
    process = subprocess.Popen(command, stdout=printed, stderr=printed, cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()  # torchrun ends its ranks, and kills them 30 seconds later
        try:
            process.wait(LEAVES)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def why(said: str, status: int) -> str:
    """What a torchrun's processes said at their end, in a line."""
    forms = (r"^python -m model\.[\w.]+(?: scale)?: (.+)$", r"^(?:\[rank\d+\]: ?)?([\w.]*Error: .+)$")
    told = [line for form in forms for line in re.findall(form, said, re.M)]
    return told[0] if told else f"ended with status {status}"


def _epoch(processes: int, device: torch.device, sizes: Sizes, folder: Path, end: float) -> dict:
    """A row of model.train itself, from Parquet: under torchrun, or on one GPU without it."""
    rows, graph = sizes.rows[-1], device.type == "cuda"
    precision = Precision.TF32 if graph else Precision.FP32
    row = {"part": "epoch", "gpus": processes, "rows": rows, "precision": precision, "optimizer": TableOptimizer.SGD,
           "graph": graph, "sharded": processes > 1}
    out = folder / f"epoch-{processes}"
    options = ["--preset", CASE, "--kernels", "fused", "--data", folder / "data", "--device", device.type,
               "--epochs", 2, "--batch-size", processes * rows, "--precision", precision, "--optimizer", "sgd",
               "--table-optimizer", "sgd", "--checkpoints", out, "--logs", out]
    options += ["--cuda-graph"] if graph else ["--threads", 1]
    command = [sys.executable, "-m", "model.train", *options]
    if processes > 1:
        command = _torchrun(processes, "model.train", *options)
    begin, limit = time.monotonic(), min(EPOCH_SECONDS, end - time.monotonic())
    if limit <= 0:
        return row | {"match": f"FAILED: {NO_TIME}"}
    said = folder / f"epoch-{processes}.said"
    with said.open("w") as printed, _started([str(word) for word in command], printed) as one:
        try:
            one.wait(limit)
        except subprocess.TimeoutExpired:
            return row | {"match": f"FAILED: does not end within {limit:.0f} s"}
    # The first epoch's rate has warm-up and capture in it.
    rates = re.findall(r"epoch 2: training loss ([\d.]+), ([\d,]+) rows/s", said.read_text())
    if one.returncode or not rates:
        print(*said.read_text().splitlines()[-LAST_LINES:], sep="\n", file=sys.stderr)
        return row | {"match": f"FAILED: {why(said.read_text(), one.returncode)}"}
    loss, rate = rates[0]
    return row | {"steps": math.ceil(sizes.epoch_rows / rows / processes), "loss_last": float(loss), "match": "ok",
                  "rows_per_s": float(rate.replace(",", "")), "seconds": time.monotonic() - begin}


def _write(folder: Path, rows: int, config: SyntheticConfig) -> None:
    """Rows for model.train: with the modulus hash it needs to know of ids no more than how many there are."""
    for split, count in (("train", rows), ("validation", SCORED), ("test", SCORED)):
        write_rows(folder / split, count, config)
    features = {
        f"SPARSE_{feature}": {"cardinality": cardinality, "present": 0}
        for feature, cardinality in enumerate(config.cardinalities)
    }
    (folder / "metadata.json").write_text(json.dumps({"rows": {"train": rows}} | features))


# What is made of the rows.


def judged(row: dict, cell: Cell, expected: Mapping[Cell, dict]) -> dict:
    """The row with its match, by the losses of its steps; they, and times of a step that is not right, are left out."""
    row = dict(row)
    losses, reference = row.pop("losses", None), expected.get(cell.of_reference, {})
    if "match" not in row and "losses" not in reference:
        row["match"] = f"FAILED: there is no reference: {reference.get('match', 'it was not run')}"
    if "match" not in row:
        theirs = reference["losses"]
        most = max(TOLERANCES[cell.precision], BF16 * (cell.exchange is Wire.BF16),
                   REORDERED_TIMES * max(_apart(other, theirs) for other in reference["reordered"]))
        apart = _apart(losses, theirs)
        row |= {"loss_apart": apart, "loss_apart_most": most}
        row["match"] = "ok" if apart <= most else f"FAILED: losses {apart:.2g} from one process's, limit {most:.2g}"
    if row["match"] != "ok":
        row = {name: value for name, value in row.items() if name not in TIMES}
    return row


def _apart(losses: Sequence[float], others: Sequence[float]) -> float:
    """On the mean over the steps."""
    return sum(abs(a - b) for a, b in zip(losses, others, strict=True)) / len(losses)


def verdicts(rows: Sequence[Mapping]) -> list[str]:
    """What two GPUs must reach as a graph with the larger batch, and whether they do."""
    lines = []
    for row in rows:
        if row["part"] == "step" and row["gpus"] > 1 and row["rows"] == max(FULL.rows) and row["graph"]:
            alone = [one["rows_per_s"] for one in rows if one["part"] == "step" and one["gpus"] == 1 and
                     "rows_per_s" in one and all(one[name] == row[name] for name in SAME)]
            if "rows_per_s" not in row or not alone:
                lines.append(f"MISSED: {_words(row)}: not measured")
                continue
            factor = row["rows_per_s"] / max(alone)
            met = "met" if factor >= LEAST_FACTOR else "MISSED"
            lines.append(f"{met}: {_words(row)}: {factor:.2f} times the rows/s of one GPU; limit {LEAST_FACTOR:g}")
    return lines


def line(row: Mapping) -> str:
    """The row as a line of the printed table."""
    text = f"{_words(row):72}"
    if "ms" in row:
        text += f" {row['ms']:7.3f} ms ({row['ms_low']:.3f} – {row['ms_high']:.3f}), {row['rows_per_s']:12,.0f} rows/s"
    elif "rows_per_s" in row:
        text += f" {row['rows_per_s']:12,.0f} rows/s"
    if "us" in row:
        text += f" {row['us']:8.1f} µs ({row['us_low']:.1f} – {row['us_high']:.1f}), {row['gb_per_s']:6.1f} GB/s"
        text += f" of {LINK.value / 1e9:.0f}"
    if row.get("bytes"):
        text += f", {row['bytes'] / 1e6:.2f} MB out of a GPU"
    if "nvlink_bytes" in row:
        text += f" ({row['nvlink_bytes'] / 1e6:.2f} by NVLink's counters)"
    if "peak" in row:
        text += f", tables {row['table_bytes'] / 1e9:.1f} GB, at most {max(row['peak']) / 1e9:.1f} of a GPU's "
        text += f"{row['memory'] / 1e9:.1f}"
    if "loss_apart" in row:
        text += f", losses {row['loss_apart']:.1e} apart"
    return f"{text}  {row['match']}"


def _words(row: Mapping) -> str:
    parts = [row["part"], f"{row['gpus']} GPU" + "s" * (row["gpus"] > 1), f"{row['rows']:,}"]
    if row["part"] == "exchange":
        parts.append(f"{row['collective']}")
    else:
        parts += [row["precision"], row["optimizer"], "graph" if row["graph"] else "eager"]
        parts += ["without ranks"] * (not row.get("sharded", True))
    return ", ".join([*parts, *["bf16 vectors"] * (row.get("exchange") == Wire.BF16)])


def record(rows: list[dict]) -> dict:
    """What is saved, in traces/results/<gpu>/scale.json."""
    versions = runtime.versions()
    return {
        "op": RECORD, **{name: versions[name] for name in ("GPU", "driver", "torch", "triton", "CUDA", "Python")},
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())), "date": today(),
        "sources_sha256": {op: sources.sha256(op, "sources") for op in OPS}, "rows": rows,
    }


def show(results: Path = records.RESULTS) -> None:
    """Print the record, labelled as recorded."""
    try:
        known = records.load(RECORD, results=results)
    except FileNotFoundError:
        print(f"nothing is recorded of several GPUs: {PROG} --measure --save, on two or more")
        return
    print(f"Recorded on {known['GPU']}, {known['date']} (torch {known['torch']}, NCCL {known['NCCL']}):")
    print(*map(line, known["rows"]), *verdicts(known["rows"]), sep="\n")
