"""The losses of 1,000 training steps beside eager's: `python -m model.bench.losses`.

    python -m model.bench.losses [--precisions tf32,bf16] [--steps 1000] [--save]

On a GPU. `main` with `dot`, Kaggle's cardinalities, SGD, 2,048 rows a step: rows of data.synthetic, whose clicks can be
learned. All begin with the same weights and get the same batches in the same order:

    eager, float32     PyTorch's operations with sparse gradients, in full float32
    eager              the same in the precision
    eager, reordered   the same, the rows of each batch in another order
    fused graph        our kernels in the precision, the step as one CUDA graph

Printed is how far each curve is from eager's and from float32's: at most and on the mean over all steps, and at most of
means of 100 steps. Two right curves part by rounding, which grows with the steps. How far, eager itself shows: it is
some way from float32's curve. Ours is right if on the mean over the steps it is no further from that than LIMIT times
eager's, the reordered one among them.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.bench.losses")

import argparse
import gc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from data.cli import Parser
from data.criteo import CriteoBatches
from data.synthetic import FULL, SyntheticConfig
from model.bench import recorded
from model.bench.trainer import Trainer, noting
from model.bench.training import write_rows
from model.config import Precision, TableOptimizer, preset
from model.device import settings

NAME = "losses"  # of its file in traces/results/<gpu>/
STEPS, ROWS, OF_A_MEAN = 1000, 2048, 100
LIMIT = 1.5
OURS, EAGER, REORDERED, FLOAT32 = "fused graph", "eager", "eager, reordered", "eager, float32"


def measure(
    batches: Sequence[Sequence[Tensor]], cardinalities: tuple[int, ...], precision: Precision, device: torch.device
) -> Iterator[dict]:
    """A row for each curve, float32's first."""
    shape = replace(preset("main").model, cardinalities=cardinalities)
    ours = OURS if device.type == "cuda" else "fused"
    curves: dict[str, Tensor] = {}
    of_eager = []
    for name in (FLOAT32, EAGER, REORDERED, ours):
        own = Precision.FP32 if name == FLOAT32 else precision
        row = {"precision": str(precision), "implementation": name, "steps": len(batches), "rows": len(batches[0][0])}
        with noting(row), settings(0, own):
            implementation = name if name == ours else "eager sparse"
            trainer = Trainer(implementation, TableOptimizer.SGD, shape, len(batches[0][0]), device, own)
            curves[name] = _curve(trainer, batches, name == REORDERED, device)
            row |= {"losses": curves[name].tolist(), "match": "ok"}
            row |= {"from_float32": apart(curves[name], curves[FLOAT32])}
            if name != FLOAT32:
                row |= {"from_eager": apart(curves[name], curves[EAGER])}
            if name in (EAGER, REORDERED):
                of_eager.append(row["from_float32"]["mean"])
            elif name == ours:
                most = row["mean_most"] = LIMIT * max(of_eager)
                if not row["from_float32"]["mean"] <= most:
                    row["match"] = f"FAILED: {row['from_float32']['mean']:.2g} from float32's, limit {most:.2g}"
        trainer = None
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        yield row


def _curve(trainer: Trainer, batches: Sequence[Sequence[Tensor]], reordered: bool, device: torch.device) -> Tensor:
    random = torch.Generator(device).manual_seed(0)
    losses = torch.zeros(len(batches), device=device)
    for step, batch in enumerate(batches):
        if reordered:
            order = torch.randperm(len(batch[0]), generator=random, device=device)
            batch = [tensor[order] for tensor in batch]
        losses[step] = trainer.step(*batch)
    return losses.double().cpu()


def apart(losses: Tensor, expected: Tensor) -> dict[str, float | int]:
    """How far from each other two curves are."""
    error = (losses - expected).abs()
    whole = len(error) // OF_A_MEAN * OF_A_MEAN or len(error)
    means = [curve[:whole].unflatten(0, (-1, min(OF_A_MEAN, whole))).mean(1) for curve in (losses, expected)]
    smooth = (means[0] - means[1]).abs().max().item()
    return {"most": error.max().item(), "at": int(error.argmax()), "mean": error.mean().item(), "smooth": smooth}


def line(row: Mapping) -> str:
    text = f"{row['precision']} {row['implementation']:16}"
    if "losses" in row:
        first, last = (sum(part) / len(part) for part in (row["losses"][:OF_A_MEAN], row["losses"][-OF_A_MEAN:]))
        text += f" {row['steps']} steps, loss {first:.4f} to {last:.4f}"
    for kind in ("from_eager", "from_float32"):
        if kind in row:
            own = row[kind]
            text += f"; {kind.replace('_', ' ')}'s at most {own['most']:.2e} (step {own['at']}), mean {own['mean']:.2e}"
            text += f", means of {OF_A_MEAN} {own['smooth']:.2e}"
    text += f" (limit of the mean {row['mean_most']:.2e})" if "mean_most" in row else ""
    return f"{text}  {row['match']}"


def rounded(row: dict) -> dict:
    """The row as it is saved."""
    return row | ({"losses": [round(loss, 7) for loss in row["losses"]]} if "losses" in row else {})


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a curve failed."""
    parser = Parser(prog=f"python -m model.bench.{NAME}", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", type=_precisions, default=(Precision.TF32, Precision.BF16), help="tf32, bf16")
    parser.add_argument("--steps", type=int, default=STEPS, help="default: %(default)s")
    parser.add_argument("--largest-table", type=int, default=FULL, metavar="IDS", help="smaller tables, to try it out")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu only tries it out")
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{NAME}.json")
    options = parser.parse_args(arguments)
    asked = options.precisions, options.steps, options.largest_table, options.device
    if options.save and asked != ((Precision.TF32, Precision.BF16), STEPS, FULL, "cuda"):
        parser.error("--save: a part, or another size, is not saved over the record of all")
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"model.bench.{NAME}: no CUDA device")
        return 2
    device, config, rows = torch.device(options.device), SyntheticConfig(options.largest_table), []
    with TemporaryDirectory() as folder:
        write_rows(Path(folder) / "rows", options.steps * ROWS, config)
        read = itertools.islice(CriteoBatches(Path(folder) / "rows", ROWS), options.steps)
        batches = [[tensor.to(device, copy=True) for tensor in batch] for batch in read]
    for precision in options.precisions:
        for row in measure(batches, config.cardinalities, precision, device):
            rows.append(row)
            print(line(row), flush=True)
    if options.save:
        print(recorded.save(NAME, map(rounded, rows)))
    return int(any(row["match"] != "ok" for row in rows))


def _precisions(text: str) -> tuple[Precision, ...]:
    try:
        return tuple(map(Precision, text.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(error) from None
