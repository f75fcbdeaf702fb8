"""What memory a training step takes with the look-ups within the interaction's kernel, and with the vectors in memory.

    python -m model.bench.step_memory [--rows 65536] [--widths 16,128] [--precisions fp32,tf32,bf16] [--save]

On a GPU. A cell is a width of the vectors, a precision, and a step as one CUDA graph or without: SGD, `main` with
`dot`, or MLPerf's MLPs for its width; Criteo's cardinalities, each at most `--most-rows`; uniform ids. Both ways are
the same kernels but for look-ups and interaction, are taken in every precision, and begin with the same weights; their
losses of a few steps must agree. Printed is the most memory that is allocated beyond the tables
(torch.cuda.max_memory_allocated, from the model's making to a replayed step), and ms a step, by turns. The vectors of a
batch are B · F · D numbers; their gradient is in memory once, either way.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.bench.step_memory")

import argparse
import gc
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from data.cli import Parser
from kernels.measure.clock import percentiles
from kernels.ops.embedding_bags.bench import KAGGLE
from model import fused
from model.bench import recorded
from model.bench.trainer import Trainer, noting
from model.config import Kernels, Precision, TableOptimizer, preset
from model.device import settings
from model.profiling.recording import step_times

NAME = "step_memory"  # of its file in traces/results/<gpu>/
ROWS, WIDTHS = 65536, (16, 128)
PRESETS = {16: "main", 128: "mlperf"}
IMPLEMENTATIONS = ("fused", "fused graph")
IN_TWO, IN_ONE = "vectors in memory", "looked up within the interaction"
STEPS = 6  # of which a graph's last ones are captured and replayed
# How far losses of the first steps may be apart, as shares: by another order of float32 sums, or rounded factors.
CLOSE = {Precision.FP32: 1e-4, Precision.TF32: 2e-3, Precision.BF16: 2e-2}


@contextmanager
def looking_up(way: str, trainer: Trainer) -> Iterator[None]:
    """Within it the trainer's model looks up in this way, whatever is faster."""
    trainer.model.interaction_arch.backend = "cuda"
    with mock.patch.object(fused, "looks_up", fused.looks_up if way == IN_ONE else lambda *_: False):
        yield


def cell(
    width: int, count: int, precision: Precision, implementation: str, most_rows: int, device: torch.device
) -> list[dict]:
    """A row for each way."""
    cardinalities = tuple(min(number, most_rows) for number in KAGGLE)
    shape = replace(preset(PRESETS[width]).model, cardinalities=cardinalities, hash="modulus", kernels=Kernels.FUSED)
    random = torch.Generator().manual_seed(0)
    batches = [drawn(count, shape.bottom[0], cardinalities, random, device) for _ in range(2)]
    torch.ones(8, 8, device=device).mm(torch.ones(8, 8, device=device))  # whose workspace is nobody's of these
    rows, steps, losses, turns = {}, {}, {}, itertools.cycle(batches)
    for way in (IN_TWO, IN_ONE):
        row = rows[way] = {
            "width": width, "rows": count, "precision": str(precision), "implementation": implementation, "way": way,
            "vectors_mb": count * len(cardinalities) * width * 4e-6, "match": "ok",
        }
        with noting(row), settings(torch.get_num_threads(), precision):
            trainer = Trainer(implementation, TableOptimizer.SGD, shape, count, device, precision)

            def step(*batch: Tensor, way: str = way, trainer: Trainer = trainer) -> Tensor:
                with looking_up(way, trainer), settings(torch.get_num_threads(), precision):
                    return trainer.step(*batch)

            losses[way] = []
            for batch in itertools.islice(itertools.cycle(batches), STEPS):
                with trainer.peak:
                    losses[way].append(step(*batch).item())
            row["peak_mb"] = trainer.peak.bytes and (trainer.peak.bytes - trainer.floor) / 1e6
            row["loss"] = losses[way][-1]
            steps[way] = lambda step=step: step(*next(turns))
    if len(steps) == len(rows):
        first, second = map(np.array, losses.values())
        apart = float(np.max(abs(first - second) / np.maximum(1, abs(first))))  # NaN where a loss is
        for row in rows.values():
            row["loss_apart"] = apart
            if not apart <= CLOSE[precision]:
                row["match"] = f"FAILED: losses {apart:.2g} apart, limit {CLOSE[precision]:g}"
    good = {way: step for way, step in steps.items() if rows[way]["match"] == "ok"}
    times = step_times(good) if good else {}
    for way in good:
        rows[way]["ms_low"], rows[way]["ms"], rows[way]["ms_high"] = percentiles(times[way].tolist())
    return list(rows.values())


def drawn(
    count: int, numbers: int, cardinalities: Sequence[int], random: torch.Generator, device: torch.device
) -> list[Tensor]:
    """labels, dense features and uniform ids."""
    ids = [torch.randint(max(below, 1), (count,), generator=random) for below in cardinalities]
    labels, dense = torch.randint(2, (count,), generator=random).float(), torch.randn(count, numbers, generator=random)
    return [tensor.to(device) for tensor in (labels, dense, torch.stack(ids, 1))]


def line(row: dict) -> str:
    """The row as a line of the printed table."""
    text = f"{row['width']:3} wide {row['precision']} {row['implementation']:11} {row['way']:{len(IN_ONE)}}"
    if row["match"] == "ok":
        peak = "–" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}"
        text += f" {peak:>6} MB beyond the tables (vectors {row['vectors_mb']:,.0f}), {row['ms']:.3f} ms"
        text += f" ({row['ms_low']:.3f} – {row['ms_high']:.3f}), losses {row['loss_apart']:.1e} apart"
    return f"{text}  {row['match']}"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed."""
    parser = Parser(prog=f"python -m model.bench.{NAME}", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS, help="of a batch (default: %(default)s)")
    parser.add_argument("--widths", type=_numbers, default=WIDTHS, help=f"some of {', '.join(map(str, PRESETS))}")
    parser.add_argument("--precisions", type=_precisions, default=tuple(Precision), help=", ".join(Precision))
    parser.add_argument("--most-rows", type=int, default=1_000_000, help="of a table (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{NAME}.json")
    options = parser.parse_args(arguments)
    asked = options.rows, options.widths, options.precisions, options.most_rows
    if options.save and asked != (ROWS, WIDTHS, tuple(Precision), 1_000_000):
        parser.error("--save: a part of the cells, or another size, is not saved over the record of all")
    if not torch.cuda.is_available():
        print(f"model.bench.{NAME}: no CUDA device")
        return 2
    rows = []
    for width, precision, name in itertools.product(options.widths, options.precisions, IMPLEMENTATIONS):
        rows += cell(width, options.rows, precision, name, options.most_rows, torch.device("cuda"))
        print(*map(line, rows[-2:]), sep="\n", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    if options.save:
        print(recorded.save(NAME, rows, ("lookup_interact", "embedding_bags", "dot_interaction")))
    return int(any(row["match"] != "ok" for row in rows))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _some(text, [*map(str, PRESETS)])))


def _precisions(text: str) -> tuple[Precision, ...]:
    return tuple(map(Precision, _some(text, [*Precision])))


def _some(text: str, names: Sequence[str]) -> list[str]:
    chosen = text.split(",")
    if not set(chosen) <= {*names}:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(names)}, joined by commas, got {text!r}")
    return chosen
