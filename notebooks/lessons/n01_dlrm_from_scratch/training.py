"""A small DLRM made of the parts that the reader wrote, trained on the sample for a few seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data import synthetic
from data.criteo import CriteoBatches, read_metadata
from lessons.n01_dlrm_from_scratch import puzzles
from lessons.shared.puzzle.in_pytorch import dense_gradient
from model.config import PRESETS, DLRMConfig, Precision
from model.device import settings
from model.dlrm import DLRM
from model.evaluation import Metrics, score

ROWS, STEPS = 1024, 120  # of a step; of the training
PARTS = ("mlp", "look_up", "interaction")


@dataclass(frozen=True)
class Run:
    """losses: of each step. entropy: the loss of who always says the click rate. metrics, best: on validation; the best
    AUC that any model can reach there."""

    losses: list[float]
    entropy: float
    metrics: Metrics
    best: float


def shape(preset: str) -> DLRMConfig:
    """The preset's model with the sample's cardinalities, a table a feature."""
    return replace(PRESETS[preset].model.with_metadata(read_metadata(synthetic.sample())), sparse_gradients=False)


class ByHand(nn.Module):
    """A DLRM, and functions in place of some of its parts: mlp, look_up, interaction (puzzles.py)."""

    def __init__(self, config: DLRMConfig, parts: Mapping[str, Callable]):
        super().__init__()
        self.model, self.parts = DLRM(config), dict(parts)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """The logits, [B]."""
        model = self.model
        mlp, look_up, interaction = (self.parts.get(name) for name in PARTS)
        linears = [layer for layer in model.dense_arch.mlp if isinstance(layer, nn.Linear)]
        weights, biases = [layer.weight for layer in linears], [layer.bias for layer in linears]
        x = mlp(dense, weights, biases) if mlp else model.dense_arch(dense)
        tables = [dense_gradient(table.weight) for table in model.sparse_arch.tables]
        vectors = look_up(tables, sparse) if look_up else model.sparse_arch(sparse)
        return model.over_arch((interaction or model.interaction_arch)(x, vectors)).squeeze(1)


def entropy(rate: float) -> float:
    """The log loss of who always predicts this probability, and is right on average."""
    return -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


def train(learning_rate: float = 0.01) -> Run:
    """Some steps of Adam, on the CPU, where the parts were tried; prints whose ran, and how good it has become."""
    torch.manual_seed(0)
    sample, start = synthetic.sample(), time.perf_counter()
    with settings(1, Precision.FP32):  # at these sizes a second thread costs more than it saves
        model = ByHand(shape("small"), puzzles.SOLVED)
        losses, rate = _steps(model, sample / "train", learning_rate)
        metrics = _validate(model, sample / "validation")
    run = Run(losses, entropy(rate), metrics, synthetic.best_auc(sample)["validation"])
    for name in PARTS:
        print(f"{name + ':':13}{'yours' if name in model.parts else 'ours, until yours passes'}")
    seconds, last = time.perf_counter() - start, np.mean(losses[-20:])
    print(f"{len(losses)} steps of {ROWS:,} rows in {seconds:.0f} s: loss {losses[0]:.3f}, then {last:.3f}")
    print(f"validation: loss {metrics.log_loss:.3f}, AUC {metrics.auc:.3f}; by chance 0.5, at best {run.best:.3f}")
    return run


def _steps(model: ByHand, path: Path, learning_rate: float) -> tuple[list[float], float]:
    """The loss of each step, and the share of clicks among the rows."""
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    losses, clicks = [], []
    for labels, dense, sparse in islice(CriteoBatches(path, ROWS, shuffle=True, seed=0), STEPS):
        loss = F.binary_cross_entropy_with_logits(model(dense, sparse), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        clicks.append(labels.mean())
    return torch.stack(losses).tolist(), torch.stack(clicks).mean().item()


@torch.no_grad()
def _validate(model: ByHand, path: Path) -> Metrics:
    batches = CriteoBatches(path, 4096)
    found = [(labels, model(dense, sparse).sigmoid()) for labels, dense, sparse in batches]
    labels, probabilities = (torch.cat(part).numpy() for part in zip(*found, strict=True))
    return score(labels, probabilities.astype(np.float64))
