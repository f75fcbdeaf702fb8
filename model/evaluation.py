"""How good a model's predictions are: log loss, ROC AUC and calibration, over all rows of a split.

    python -m model.evaluation build/checkpoints/NAME/best.pt DIR [--split test]

DIR is what data.preprocess and data.synthetic write.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.evaluation")

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor
from tqdm import tqdm

import kernels
from data.cli import Parser, UserError
from data.criteo import CRITEO, LABEL, SPLITS, CriteoBatches
from data.metadata import read_own_schema
from data.schema import Column, Kind, Schema, schema_of
from model.config import DLRMConfig, Kernels, Precision
from model.device import autocast, choose, to
from model.dlrm import DLRM

BATCH_SIZE = 4096


class Batches(Protocol):
    """Rows by the batch: labels float32 [B], dense float32 [B, 13], sparse int64 [B, 26], or with lists ids int64 [N]
    and offsets; data.criteo.CriteoBatches are such. num_rows: of all batches, None if it is not known."""

    num_rows: int | None

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]: ...


class Stopped(Exception):
    """An evaluation was asked to stop before its end."""


@dataclass(frozen=True)
class Metrics:
    """How well predictions fit labels. None where it is not defined: no rows, for the AUC one class only, for the
    calibration no click.

    calibration: the clicks that are predicted over those that came, both summed over all rows; 1 is right on average.
    """

    rows: int
    log_loss: float | None
    auc: float | None
    calibration: float | None = None

    def __str__(self) -> str:
        shown = ("n/a" if value is None else f"{value:.4f}" for value in (self.log_loss, self.auc, self.calibration))
        return "rows {}, log loss {}, ROC AUC {}, calibration {}".format(self.rows, *shown)


def score(labels: np.ndarray, probabilities: np.ndarray) -> Metrics:
    """The metrics of probabilities [N] for labels [N], each 0 or 1. UserError if one is not a number."""
    rows = len(labels)
    if not rows:
        return Metrics(0, None, None, None)
    if np.isnan(probabilities).any():
        raise UserError("the model predicts NaN: training has diverged; try a smaller --learning-rate")
    clicks = float(labels.sum(dtype=np.float64))
    auc = float(roc_auc_score(labels, probabilities)) if 0 < clicks < rows else None
    calibration = float(probabilities.sum(dtype=np.float64)) / clicks if clicks else None
    return Metrics(rows, float(log_loss(labels, probabilities, labels=[0, 1])), auc, calibration)


def logits(
    model: DLRM,
    batches: Batches,
    device: torch.device,
    *,
    precision: Precision = Precision.FP32,
    name: str | None = "evaluation",
    stop: Callable[[], object] = lambda: False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The labels, float32 [B], and logits, float32 [B] on the device, of each batch.

    A progress bar bears the name; without one there is none. Stopped is raised after the batch at which stop() is true.
    """
    disable = None if name else True  # None: where stderr is no terminal
    options = {"desc": name, "unit": " rows", "unit_scale": True, "disable": disable, "leave": False}
    with tqdm(total=batches.num_rows, **options) as bar:
        for labels, *inputs in batches:
            with torch.no_grad(), autocast(device, precision):
                of_batch = model(*to(device, *inputs))
            yield labels, of_batch
            bar.update(len(labels))
            if stop():
                raise Stopped


def trained(checkpoint: str | Path, device: torch.device) -> DLRM:
    """The model of a checkpoint on the device, by what computes it fastest there: on a GPU fused kernels, one for the
    whole model where it fits. UserError as `DLRM.from_checkpoint`."""
    kernels = Kernels.FUSED if device.type == "cuda" else Kernels.EAGER
    return DLRM.from_checkpoint(checkpoint, kernels).to(device)


def columns_of(model: DLRM) -> Schema:
    """The columns that a model of `DLRM.from_checkpoint` takes."""
    schema = CRITEO if model.schema is None else schema_of(model.schema, "the checkpoint")
    return columns_used(schema, model.config)


def input_columns(model: DLRM) -> dict[str, list[dict[str, str]]]:
    """Which columns of the rows a served model takes, in their order: {"counts": […], "ids": […]}, each a dict with its
    "name", its "kind" as data.schema has it, and for lists the "separator"."""
    schema = columns_of(model).first(len(model.config.cardinalities))
    columns = {"counts": [], "ids": []}
    for name in (*schema.dense, *schema.sparse):
        column = schema.of[name]
        of_list = {"separator": column.separator} if column.separator else {}
        where = "counts" if column.kind is Kind.COUNT else "ids"
        columns[where].append({"name": name, "kind": str(column.kind)} | of_list)
    return columns


def check_form(model: DLRM, form: Schema, what: str) -> None:
    """Raise UserError, naming the column, if rows of this form are not what the model was trained on: a column that is
    not there, lists for single values or the reverse, ids of texts for numbers or the reverse. what: says it."""
    for name, column in columns_of(model).of.items():
        if name == LABEL:
            continue
        if name not in form.of:
            raise UserError(f"{what}: expected column {name}, which the model was trained on, found none of that name")
        trained, actual = _form(column), _form(form.of[name])
        if trained != actual:
            raise UserError(f"{what}: column {name}: expected {trained}, as the model was trained on, found {actual}")


def _form(column: Column) -> str:
    kind = {Kind.COUNT: "counts", Kind.TEXT: "texts"}.get(column.kind, "numbers")  # hex, integer: the same ids
    return f"{'lists of ' if column.separator else ''}{kind}"


def columns_used(schema: Schema, config: DLRMConfig) -> Schema:
    """The columns that a model of this config takes: bags have to be as many as its tables."""
    return schema.first(len(config.cardinalities)) if schema.lists else schema


def predict(model: DLRM, batches: Batches, device: torch.device, **options) -> tuple[np.ndarray, np.ndarray]:
    """The labels, float32 [N], and click probabilities, float64 [N], of all rows of batches.

    The options are those of `logits`. IndexError for a row that a table does not have.
    """
    labels, predicted = [torch.empty(0)], [torch.empty(0, device=device)]
    for of_batch in logits(model, batches, device, **options):
        for all_of_them, new in zip((labels, predicted), of_batch, strict=True):
            all_of_them.append(new)
    probabilities = probabilities_of(torch.cat(predicted))  # waits for the device
    kernels.check_ids()
    return torch.cat(labels).numpy(), probabilities


def probabilities_of(logits: Tensor) -> np.ndarray:
    """The click probabilities, float64 [N], of logits [N]."""
    # In double precision, where a confident probability is not yet rounded to 1 and its log loss to infinity.
    return torch.sigmoid(logits.double()).cpu().numpy()


def evaluate(model: DLRM, batches: Batches, device: torch.device, **options) -> Metrics:
    """The metrics of the model's predictions for all rows of batches; the options are those of `predict`."""
    return score(*predict(model, batches, device, **options))


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m model.evaluation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="what model.train wrote")
    parser.add_argument("data", type=Path, metavar="DIR", help="what data.preprocess wrote")
    parser.add_argument("--split", choices=SPLITS, default="test", help="default: %(default)s")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    options = parser.parse_args(arguments)
    device = choose(options.device)
    model = trained(options.checkpoint, device)
    if (options.data / "metadata.json").exists():
        check_form(model, read_own_schema(options.data), f"{options.data / 'metadata.json'}: schema")
    batches = CriteoBatches(options.data / options.split, BATCH_SIZE, schema=columns_of(model))
    print(f"{options.split}: {evaluate(model, batches, device, name=options.split)}")
