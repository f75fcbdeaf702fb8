"""A training run's state: what changes from step to step, written to a checkpoint and read back into the same run."""

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from data.cli import UserError
from data.criteo import SPARSE
from model.checkpoints import FORMAT, first_line, load_checkpoint, save_checkpoint
from model.dlrm import DLRM
from model.evaluation import Metrics
from model.optimizers import Optimizers

# What may differ between a checkpoint and the run that goes on from it: how long to train, what to look at, and which
# kernels compute the same step; not how to train.
CHANGEABLE = ("epochs", "patience", "checkpoint_every", "eval_every", "eval_batch_size", "kernels")


class Run:
    """What changes during training, and its way into a checkpoint and back.

    identity: what a checkpoint and the run that goes on from it must share.
    """

    def __init__(
        self,
        identity: dict,
        model: DLRM,
        optimizer: Optimizers,
        device: torch.device,
        rows: int,
        steps: int,
    ):
        self.identity, self.model, self.optimizer, self.device = identity, model, optimizer, device
        self.rows, self.steps = rows, steps  # of an epoch
        self.epoch = 0  # epochs finished
        self.step = 0  # steps done in the epoch that runs
        self.stale = 0  # epochs since the best one
        self.best: float | None = None  # its validation log loss
        self.history: list[Metrics] = []
        # One loss a step, on the device: reading it there would make the host wait in every step. Grows by the epoch.
        self.losses = torch.zeros(0, device=device)

    @property
    def done(self) -> int:
        """Steps done since the beginning."""
        return self.epoch * self.steps + self.step

    def note(self, loss: Tensor) -> None:
        """A step is done; its loss stays on the device."""
        if self.done == len(self.losses):
            self.losses = torch.cat([self.losses, self.losses.new_zeros(self.steps)])
        self.losses[self.done] = loss
        self.step += 1

    def end_epoch(self, validation: Metrics) -> bool:
        """Note an epoch's validation metrics; whether it is the best so far. Without validation rows the last is."""
        self.epoch, self.step = self.epoch + 1, 0
        self.history.append(validation)
        is_best = validation.log_loss is None or self.best is None or validation.log_loss < self.best
        self.stale = 0 if is_best else self.stale + 1
        if is_best:
            self.best = validation.log_loss
        return is_best

    def save(self, path: Path) -> None:
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        state = {
            "format": FORMAT,
            "config": self.identity,
            "parameters": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": random,
            "epoch": self.epoch,
            "step": self.step,
            "stale": self.stale,
            "best": self.best,
            "history": [asdict(metrics) for metrics in self.history],
            "losses": self.losses[: self.done].cpu(),
        }
        save_checkpoint(path, state)

    def restore(self, path: Path) -> None:
        """Go back to where the checkpoint was written; UserError, naming the field, if it is of another run."""
        state = load_checkpoint(path)
        try:
            _check_same(path, state["config"], self.identity)
            for name, buffer in self.model.named_buffers():
                if name in state["parameters"] and not torch.equal(buffer.cpu(), state["parameters"][name]):
                    raise UserError(f"{path}: {name}: the checkpoint has other ids than this run's metadata.json")
            self.model.load_state_dict(state["parameters"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"]["cpu"])
            if self.device.type == "cuda" and "cuda" in state["random"]:
                torch.cuda.set_rng_state(state["random"]["cuda"], self.device)
            for field in ("epoch", "step", "stale", "best"):
                setattr(self, field, state[field])
            self.history = [Metrics(**metrics) for metrics in state["history"]]
            self.losses = torch.zeros(self.done, device=self.device)
            self.losses[:] = state["losses"]
        except UserError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{path}: not a usable checkpoint: {first_line(error)}") from None


def _check_same(path: Path, theirs: dict, ours: dict) -> None:
    for field, value in ours.items():
        if field in CHANGEABLE:
            continue
        if field not in theirs:
            raise UserError(f"{path}: {field}: the checkpoint does not say it, this run has {value}")
        if isinstance(value, dict):
            _check_same(path, theirs[field], value)
        elif field == "cardinalities" and len(theirs[field]) == len(value):
            _check_same(path, *(dict(zip(SPARSE, numbers, strict=False)) for numbers in (theirs[field], value)))
        elif theirs[field] != value:
            raise UserError(f"{path}: {field}: checkpoint has {theirs[field]}, this run {value}")
