"""What training from Parquet costs on a CPU beside a loop over tensors in memory: `python -m model.bench.plain_loop`.

`small`, 2,048 rows a step, the hash sorted, rows with Criteo's full cardinalities (data.synthetic). The plain loop is
what one writes without data.criteo and model.train: the same model, optimizers and batches of the same size; labels,
counts and the tables' rows as tensors in memory, made beforehand, shuffled by torch.randperm; a bar, and the mean loss
of each 100 steps in TensorBoard. Both are processes of their own, by turns. Counted are whole epochs without what comes
before and without evaluation: rows/s, and rows a second of CPU, of all threads.
"""

from __future__ import annotations

if __name__ == "__main__":
    from data.cli import run

    run("model.bench.plain_loop")

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from data.cli import Parser, user_errors
from data.criteo import DENSE, LABEL, SPARSE
from data.metadata import read_metadata
from data.synthetic import main as synthetic
from model import train as training
from model.config import Hash, Preset, preset
from model.dlrm import DLRM
from model.optimizers import make_optimizer
from model.progress import STEPS_PER_REPORT, Progress

BATCH = 2048
LEAST = 0.9  # of the plain loop's rows/s


@dataclass(frozen=True)
class Epoch:
    """Rows a second, rows a second of CPU, the mean loss, and the most resident bytes until its end."""

    rate: float
    cpu_rate: float
    loss: float
    peak: int


class Clock:
    """Times an epoch; made at its beginning."""

    def __init__(self):
        self.begun, self.cpu = time.perf_counter(), time.process_time()

    def epoch(self, rows: int, loss: float) -> Epoch:
        seconds, cpu = time.perf_counter() - self.begun, time.process_time() - self.cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Epoch(rows / seconds, rows / cpu, loss, peak)


def settings(epochs: int) -> Preset:
    base = preset("small")
    train = replace(base.train, batch_size=BATCH, epochs=epochs, patience=0)
    return Preset(replace(base.model, hash=Hash.SORTED), train)


def from_parquet(data: Path, scratch: Path, epochs: int) -> list[Epoch]:
    """model.train's epochs."""
    measured = []

    class Timed(Progress):
        def __enter__(self) -> Progress:
            self.clock = Clock()
            return super().__enter__()

        def __exit__(self, *error) -> None:
            losses = self.run.losses[self.run.done - self.run.steps : self.run.done]
            measured.append(self.clock.epoch(self.run.rows, losses.mean().item()))
            super().__exit__(*error)

    training.Progress = Timed
    training.train(settings(epochs), data, device="cpu", checkpoints=scratch / "checkpoints", logs=scratch / "logs")
    return measured


def plain_loop(data: Path, scratch: Path, epochs: int) -> list[Epoch]:
    """The same from tensors in memory."""
    features, chosen = read_metadata(data), settings(epochs)
    config = chosen.model.with_metadata(features)
    torch.manual_seed(chosen.train.seed)
    torch.set_num_threads(chosen.train.threads)
    model = DLRM(config, config.vocabularies(features))
    optimizer = make_optimizer(model, Preset(config, chosen.train))
    labels, dense, rows = _in_memory(data / "train", model)
    writer, measured = SummaryWriter(str(scratch)), []
    for _ in range(epochs):
        clock, losses = Clock(), []
        for batch in tqdm(torch.randperm(len(labels)).split(BATCH), disable=None):
            optimizer.advance()
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model.of_rows(dense[batch], rows[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if len(losses) % STEPS_PER_REPORT == 0:
                writer.add_scalar("loss/train", torch.stack(losses[-STEPS_PER_REPORT:]).mean(), len(losses))
        measured.append(clock.epoch(len(labels), torch.stack(losses).mean().item()))
    return measured


def _in_memory(directory: Path, model: DLRM) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Labels, transformed counts, and the rows that the ids stand for."""
    table = pl.read_parquet(directory / "*.parquet")
    labels = torch.from_numpy(table[LABEL].cast(pl.Float32).to_numpy(writable=True))
    counts = table.select(DENSE).fill_null(0).cast(pl.Float32).to_numpy().clip(min=0)
    hashes = zip(SPARSE, model.sparse_arch.hashes, strict=True)
    rows = [hash_(torch.from_numpy(table[name].to_numpy(writable=True))) for name, hash_ in hashes]
    return labels, torch.from_numpy(np.ascontiguousarray(np.log1p(counts))), torch.stack(rows, dim=1)


WAYS: dict[str, Callable[[Path, Path, int], list[Epoch]]] = {"model.train": from_parquet, "plain loop": plain_loop}


def in_a_process(way: str, data: Path, epochs: int) -> list[Epoch]:
    """What the way measures in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        child = subprocess.run(
            [sys.executable, "-m", "model.bench.plain_loop", "--way", way, "--data", str(data), "--scratch", scratch,
             "--epochs", str(epochs)],
            capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    if child.returncode:
        raise RuntimeError(child.stderr)
    return [Epoch(**epoch) for epoch in json.loads(child.stdout.splitlines()[-1])]


def bench(data: Path, epochs: int, repeats: int) -> None:
    measured: dict[str, list[Epoch]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way, results in measured.items():
            results += in_a_process(way, data, epochs)
    print(f"{repeats} turns of {epochs} epochs; the middle epoch, the most memory")
    for way, results in measured.items():
        rate, cpu_rate = (median(getattr(epoch, field) for epoch in results) for field in ("rate", "cpu_rate"))
        peak = max(epoch.peak for epoch in results)
        losses = ", ".join(f"{epoch.loss:.4f}" for epoch in results[:epochs])
        print(f"  {way:<12} {rate:>9,.0f} rows/s, {cpu_rate:>9,.0f} a second of CPU, peak {peak / 1e6:,.0f} MB; "
              f"losses {losses}")
    for field, name, aim in (("rate", "rows/s", f"; the aim: at least {LEAST}"), ("cpu_rate", "rows/s of CPU", "")):
        ratios = [getattr(a, field) / getattr(b, field) for a, b in zip(*measured.values(), strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"  {name}, of the plain loop's: {median(ratios):.2f} ({spread}{aim})")


def main(arguments: list[str] | None = None) -> None:
    prog = "python -m model.bench.plain_loop"
    parser = Parser(prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="to draw; default: %(default)s")
    parser.add_argument("--data", type=Path, metavar="DIR", help="rows that are there, Criteo's, preprocessed")
    parser.add_argument("--epochs", type=int, default=2, help="of a turn; default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="turns; default: %(default)s")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # what a process of this one is to measure
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name, least in (("rows", BATCH), ("epochs", 1), ("repeats", 1)):
        if getattr(options, name) < least:
            parser.error(f"argument --{name}: expected at least {least}, got {getattr(options, name)}")
    with user_errors(prog), tempfile.TemporaryDirectory() as scratch:
        if options.way:
            epochs = WAYS[options.way](options.data, options.scratch, options.epochs)
            print(json.dumps([asdict(epoch) for epoch in epochs]))
            return
        data = options.data or Path(scratch) / "data"
        if options.data is None:
            with contextlib.redirect_stdout(sys.stderr):
                synthetic(["--rows", str(options.rows), "--out", str(data), "--full-cardinalities"])
        bench(data, options.epochs, options.repeats)
