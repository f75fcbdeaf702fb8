"""How good a model's predictions are: log loss and ROC AUC, over all rows of a split."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor
from tqdm import tqdm

import kernels
from data.cli import UserError
from model.config import Precision
from model.device import autocast, to
from model.dlrm import DLRM


class Batches(Protocol):
    """Rows by the batch: labels float32 [B], dense float32 [B, 13], sparse int64 [B, 26]; data.criteo.CriteoBatches
    are such. num_rows: of all batches, None if it is not known."""

    num_rows: int | None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]: ...


class Stopped(Exception):
    """An evaluation was asked to stop before its end."""


@dataclass(frozen=True)
class Metrics:
    """How well predictions fit labels. None where it is not defined: no rows, or for the AUC one class only."""

    rows: int
    log_loss: float | None
    auc: float | None

    def __str__(self) -> str:
        shown = ("n/a" if value is None else f"{value:.4f}" for value in (self.log_loss, self.auc))
        return "rows {}, log loss {}, ROC AUC {}".format(self.rows, *shown)


def score(labels: np.ndarray, probabilities: np.ndarray) -> Metrics:
    """The metrics of probabilities [N] for labels [N], each 0 or 1. UserError if one is not a number."""
    rows = len(labels)
    if not rows:
        return Metrics(0, None, None)
    if np.isnan(probabilities).any():
        raise UserError("the model predicts NaN: training has diverged; try a smaller --learning-rate")
    auc = float(roc_auc_score(labels, probabilities)) if 0 < labels.sum() < rows else None
    return Metrics(rows, float(log_loss(labels, probabilities, labels=[0, 1])), auc)


def logits(
    model: DLRM,
    batches: Batches,
    device: torch.device,
    *,
    precision: Precision = Precision.FP32,
    name: str = "evaluation",
    stop: Callable[[], object] = lambda: False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The labels, float32 [B], and logits, float32 [B] on the device, of each batch.

    A progress bar bears the name. Stopped is raised after the batch at which stop() is true.
    """
    options = {"desc": name, "unit": " rows", "unit_scale": True, "disable": None, "leave": False}
    with tqdm(total=batches.num_rows, **options) as bar:
        for labels, dense, sparse in batches:
            with torch.no_grad(), autocast(device, precision):
                of_batch = model(*to(device, dense, sparse))
            yield labels, of_batch
            bar.update(len(labels))
            if stop():
                raise Stopped


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
