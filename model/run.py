"""A training run's state: what changes from step to step, written to a checkpoint and read back into the same run."""

import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from data.cli import UserError
from model.checkpoints import FORMAT, first_line, is_of_ranks, load_checkpoint, load_whole, save_checkpoint
from model.dlrm import DLRM
from model.evaluation import Metrics
from model.optimizers import Optimizers

# What may differ between a checkpoint and the run that goes on from it: how long to train, what to look at, and which
# kernels compute the same step; not how to train.
CHANGEABLE = ("epochs", "patience", "checkpoint_every", "eval_every", "eval_batch_size", "kernels", "deterministic")
# What may differ too, if the user says so: what is left of the run is another one then.
CHANGEABLE_IF_SAID = (
    "learning_rate", "table_learning_rate", "weight_decay", "warmup_steps", "decay_start_step", "decay_steps",
    "precision", "batch_size", "threads", "data",
)
# What is in a checkpoint that was written before there was the field.
LATER = {"decay_start_step": 0, "decay_steps": 0, "deterministic": True}
# Besides the parameters, Adam keeps two numbers for each, from its first step on.
ADAM_NUMBERS = 2


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
        self.before = 0  # steps done in them
        self.step = 0  # steps done in the epoch that runs
        self.stale = 0  # epochs since the best one
        self.best: float | None = None  # its validation log loss
        self.history: list[Metrics] = []
        # One loss a step, on the device: reading it there would make the host wait in every step. Grows by the epoch.
        self.losses = torch.zeros(0, device=device)
        self.checked = 0  # so many of them are known to be finite
        self.saved: str | None = None  # where the latest checkpoint is, and of which step

    @property
    def done(self) -> int:
        """Steps done since the beginning."""
        return self.before + self.step

    def note(self, loss: Tensor) -> None:
        """A step is done; its loss stays on the device."""
        if self.done == len(self.losses):
            self.losses = torch.cat([self.losses, self.losses.new_zeros(self.steps)])
        self.losses[self.done] = loss
        self.step += 1

    def end_epoch(self, validation: Metrics) -> bool:
        """Note an epoch's validation metrics; whether it is the best so far. Without validation rows the last is."""
        self.epoch, self.before, self.step = self.epoch + 1, self.done, 0
        self.history.append(validation)
        is_best = validation.log_loss is None or self.best is None or validation.log_loss < self.best
        self.stale = 0 if is_best else self.stale + 1
        if is_best:
            self.best = validation.log_loss
        return is_best

    def check_losses(self) -> None:
        """Raise UserError if a loss since the last check is not finite, naming its step. Waits for the device."""
        bad = self.losses[self.checked : self.done].isfinite().logical_not().nonzero()
        if len(bad):
            step = self.checked + int(bad[0])
            self._diverged(f"the loss is {self.losses[step].item()} in step {step + 1:,}")
        self.checked = self.done

    def _check_parameters(self) -> None:
        for name, parameter in self.model.named_parameters():
            if parameter.numel() and not all(bound.isfinite() for bound in parameter.detach().aminmax()):
                self._diverged(f"{name} is no longer finite after step {self.done:,}")

    def _diverged(self, what: str) -> NoReturn:
        raise UserError(
            f"training has diverged: {what}; try a smaller --learning-rate. "
            + (f"{self.saved} is kept" if self.saved else "No checkpoint was written")
        )

    def check_room(self, folder: Path) -> None:
        """Raise UserError if the file system has no room for the best checkpoint, the last one and the next one."""
        self._check_free(folder, self._size())

    def _check_free(self, folder: Path, size: int) -> None:
        there = sum(file.stat().st_size for file in self._kept(folder) if file.exists())
        free = shutil.disk_usage(folder).free
        if free + there < 3 * size:
            raise UserError(
                f"{folder}: {(free + there) / 2**20:,.1f} MiB of room, and best.pt, last.pt and the one that is being "
                f"written take {3 * size / 2**20:,.1f} MiB; name another --checkpoints"
            )

    def _size(self) -> int:
        """The bytes of a checkpoint's tensors, once there are all."""
        size = _bytes(self.model.state_dict()) + _bytes(self.optimizer.state_dict())
        if self.done == 0 and self.identity["train"]["optimizer"] == "adam":
            of_tables = sum(_bytes(table.data) for table in self.model.sparse_arch.tables.parameters())
            parameters = sum(_bytes(parameter.data) for parameter in self.model.parameters())
            size += ADAM_NUMBERS * (parameters - of_tables)
        return size

    def _kept(self, folder: Path) -> Iterable[Path]:
        """The files that a checkpoint of this run takes the place of."""
        return folder / "best.pt", folder / "last.pt"

    def save(self, path: Path) -> None:
        """UserError, and what was there is kept, if it cannot be written, or a loss or parameter is not finite."""
        self.check_losses()
        self._check_parameters()
        save_checkpoint(path, self._state())
        self._note_saved(path)

    def _note_saved(self, path: Path) -> None:
        self.saved = f"{path}, of step {self.done:,},"

    def _state(self) -> dict:
        """The fields of a checkpoint."""
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        return {
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

    def _load(self, path: Path) -> dict:
        """A checkpoint's fields; of one whose numbers `_fill` reads, all else."""
        if is_of_ranks(path) or (not path.exists() and is_of_ranks(path.with_suffix(""))):
            raise _elsewhere(path, "under torchrun")
        return load_checkpoint(path)

    def _fill(self, path: Path, state: dict) -> None:
        """Nothing: `_load` has read all."""

    def restore(self, path: Path, changed: Collection[str] = ()) -> None:
        """Go back to where the checkpoint was written; UserError, naming the field, if it is of another run.

        changed: fields of CHANGEABLE_IF_SAID that are this run's from here on, whatever the checkpoint has.
        """
        for name in changed:
            if name not in CHANGEABLE_IF_SAID:
                known = ", ".join(CHANGEABLE_IF_SAID)
                raise UserError(f"--resume-changed {name}: expected fields of {known}")
        state = self._load(path)
        if ("sharding" in state["config"]) != ("sharding" in self.identity):
            where = "under torchrun" if "sharding" in state["config"] else "in one process, without torchrun"
            raise _elsewhere(path, where)
        try:
            _check_same(path, state["config"], self.identity, (*CHANGEABLE, *changed))
            if state["step"] and state["config"]["train"]["batch_size"] != self.identity["train"]["batch_size"]:
                at = f"this is after step {state['step']} of epoch {state['epoch'] + 1}"
                raise UserError(f"{path}: batch_size can change between two epochs alone, and {at}")
            self._fill(path, state)
            self._load_parameters(path, state)
            self.optimizer.load_state_dict(state["optimizer"] | {"steps": len(state["losses"])})
            torch.set_rng_state(state["random"]["cpu"])
            if self.device.type == "cuda" and "cuda" in state["random"]:
                torch.cuda.set_rng_state(state["random"]["cuda"], self.device)
            for field in ("epoch", "step", "stale", "best"):
                setattr(self, field, state[field])
            self.history = [Metrics(**metrics) for metrics in state["history"]]
            self.losses = state["losses"].to(self.device)
            self.before = len(self.losses) - self.step
            self._note_saved(path)
        except UserError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{path}: not a usable checkpoint: {first_line(error)}") from None

    def check_best(self, path: Path, last: Path) -> None:
        """Raise UserError unless this is a checkpoint of this run's best epoch, or of the next epoch's end, which a
        process that was killed between its two checkpoints wrote there. last: what the run goes on from."""
        try:
            state = self._load(path)
        except UserError:
            if not path.exists():
                error = UserError(f"{path}: no such checkpoint: it holds the best epoch so far; copy it beside {last}")
            raise error from None
        if not self._wrote(state) or state["epoch"] not in (self.epoch - self.stale, self.epoch + 1):
            raise UserError(
                f"{path}: is not of the run of {last}, whose best epoch it is to hold: copy that run's {path.name} "
                "there"
            )

    def load_best(self, path: Path) -> None:
        """Take the best epoch's parameters; UserError if the file is not what this run wrote there."""
        state, epoch = self._load(path), self.epoch - self.stale
        if not self._wrote(state) or state["epoch"] != epoch:
            raise UserError(
                f"{path}: is not what this run wrote there after epoch {epoch}, its best; the last one beside it is "
                "this run's"
            )
        self._fill(path, state)
        self.model.load_state_dict(state["parameters"])

    def _wrote(self, state: dict) -> bool:
        """Whether a checkpoint is of this run: the losses of their steps are the same, as far as both have them. Those
        of other settings or other parameters at the beginning differ."""
        losses = state["losses"]
        if not isinstance(losses, Tensor):
            return False
        steps = min(self.done, len(losses))
        return torch.equal(losses[:steps], self.losses[:steps].cpu())

    def begin_with(self, path: Path) -> None:
        """Take a checkpoint's parameters, and nothing else of it; UserError if they are of another model."""
        state = load_whole(path, mmap=True)
        try:
            _check_same(path, state["config"]["model"], self.identity["model"])
            self._load_parameters(path, self._own(state))
        except UserError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{path}: not a usable checkpoint: {first_line(error)}") from None

    def _own(self, state: dict) -> dict:
        """The checkpoint with the numbers of what this process holds; all of them."""
        return state

    def _load_parameters(self, path: Path, state: dict) -> None:
        for name, buffer in self.model.named_buffers():
            if name in state["parameters"] and not torch.equal(buffer.cpu(), state["parameters"][name]):
                raise UserError(f"{path}: {name}: the checkpoint has other ids than this run's metadata.json")
        self.model.load_state_dict(state["parameters"])


def _elsewhere(path: Path, where: str) -> UserError:
    return UserError(f"{path}: is of a run {where}, and --resume goes on with it there alone; see --init-from")


def _bytes(value: object) -> int:
    """The bytes of the tensors in a state_dict."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        value = value.values()
    return sum(map(_bytes, value)) if isinstance(value, Iterable) and not isinstance(value, str) else 0


def _check_same(path: Path, theirs: dict, ours: dict, changeable: Collection[str] = CHANGEABLE) -> None:
    for field, value in ours.items():
        if field in changeable:
            continue
        if field not in theirs and field == "data":  # checkpoints before did not say it
            continue
        if field not in theirs and field not in LATER:
            raise UserError(f"{path}: {field}: the checkpoint does not say it, this run has {value}")
        before = theirs.get(field, LATER.get(field))
        if field == "schema":
            if before != value:
                raise UserError(f"{path}: schema: the checkpoint's rows had other columns than this run's")
        elif isinstance(value, dict):
            _check_same(path, before, value, changeable)
        elif field == "cardinalities" and len(before) == len(value):
            _check_same(path, *({f"SPARSE_{i}": n for i, n in enumerate(numbers)} for numbers in (before, value)))
        elif field == "data" and before != value:
            raise UserError(
                f"{path}: --data has other rows than the checkpoint's, or in another order (--resume-changed data "
                "takes them all the same)"
            )
        elif before != value:
            hint = f" (--resume-changed {field} takes this run's)" if field in CHANGEABLE_IF_SAID else ""
            raise UserError(f"{path}: {field}: checkpoint has {before}, this run {value}{hint}")
