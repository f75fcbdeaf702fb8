"""Train a DLRM on preprocessed Criteo data, keep the best epoch, and say how good it is on rows it has not seen.

    python -m model.train --preset small --data DIR [--hash modulus] [--interaction dot] [--compile] [--resume]

DIR is what data.preprocess and data.synthetic write. At the end, one line each for `validation`, `test` and `held out`
(the rows of both) goes to stdout; the log, a progress bar and errors go to stderr.
"""

import argparse
import gzip
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset
import torch
import torch.nn.functional as F
from loguru import logger
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from data.cli import Parser, UserError
from data.criteo import DENSE, LABEL, SPARSE, CriteoBatches, read_metadata
from kernels import runtime
from model.config import DLRMConfig, Preset, TrainConfig, add_arguments, from_arguments
from model.dlrm import DLRM
from model.hashing import Hash
from model.optimizers import Optimizers, make_optimizer

ROOT = Path(__file__).resolve().parent.parent
SPLITS = ("train", "validation", "test")

# How often the host waits for the device to read the loss: often enough to watch, too rarely to cost anything.
STEPS_PER_REPORT = 100
# The first steps warm caches and allocators up; three recorded ones show whether they are alike.
PROFILE = {"wait": 5, "warmup": 3, "active": 3}
# `index` compares [B, cardinality] ids, one byte each: beyond this nobody waits for it, if memory suffices at all.
MAX_COMPARISONS = 1 << 31
# What may differ between a checkpoint and the run that goes on from it: how long to train, not how.
MAY_DIFFER = ("epochs", "patience")


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM, after the running step was finished and the checkpoint written."""


@dataclass(frozen=True)
class Metrics:
    """How well predictions fit labels. None where it is not defined: no rows, or for the AUC one class only."""

    rows: int
    log_loss: float | None
    auc: float | None

    def __str__(self) -> str:
        shown = ("n/a" if value is None else f"{value:.4f}" for value in (self.log_loss, self.auc))
        return "rows {}, log loss {}, ROC AUC {}".format(self.rows, *shown)


@dataclass(frozen=True)
class Result:
    """A finished training run.

    model: with the parameters of the best epoch.
    metrics: of that model, by "validation", "test" and "held out" (the rows of both).
    losses: float32 [steps], the training loss of each step.
    history: the validation metrics after each epoch.
    checkpoints: the folder with best.pt and last.pt.
    """

    model: DLRM
    metrics: dict[str, Metrics]
    losses: np.ndarray
    history: list[Metrics]
    checkpoints: Path


def score(labels: np.ndarray, probabilities: np.ndarray) -> Metrics:
    """The metrics of probabilities [N] for labels [N], each 0 or 1. UserError if one is not a number."""
    rows = len(labels)
    if not rows:
        return Metrics(0, None, None)
    if np.isnan(probabilities).any():
        raise UserError("the model predicts NaN: training has diverged; try a smaller --learning-rate")
    auc = float(roc_auc_score(labels, probabilities)) if 0 < labels.sum() < rows else None
    return Metrics(rows, float(log_loss(labels, probabilities, labels=[0, 1])), auc)


def predict(model: DLRM, batches: Iterable, device: torch.device) -> tuple[np.ndarray, np.ndarray]:
    """The labels, float32 [N], and click probabilities, float64 [N], of all rows of batches."""
    labels, logits = [torch.empty(0)], [torch.empty(0, device=device)]
    with torch.no_grad():
        for batch_labels, dense, sparse in batches:
            labels.append(batch_labels)
            logits.append(model(*_to(device, dense, sparse)))
    # In double precision, where a confident probability is not yet rounded to 1 and its log loss to infinity.
    return torch.cat(labels).numpy(), torch.sigmoid(torch.cat(logits).double()).cpu().numpy()


def evaluate(model: DLRM, batches: Iterable, device: torch.device) -> Metrics:
    """The metrics of the model's predictions for all rows of batches (as `CriteoBatches` gives them)."""
    return score(*predict(model, batches, device))


def train(
    preset: Preset,
    data: str | Path,
    *,
    name: str = "run",
    device: str | torch.device | None = None,
    compile: bool = False,
    sync_metrics: bool = False,
    profile: str | Path | None = None,
    resume: bool | str | Path = False,
    checkpoints: str | Path | None = None,
    logs: str | Path | None = None,
) -> Result:
    """Train the preset's model on DIR/train, choose the epoch by DIR/validation, evaluate it on what is held out.

    Args:
        data: DIR, with train, validation and test (Parquet) and metadata.json.
        name: of the run; names its folders where the following two are not given.
        checkpoints, logs: folders for best.pt and last.pt, and for TensorBoard
            (default: build/checkpoints/NAME and traces/local/NAME).
        device: default: a GPU if there is one.
        compile: train through torch.compile; evaluation and checkpoints are those of the plain model.
        sync_metrics: read the loss in every step, which makes the host wait for the device.
        profile: a folder for a torch.profiler trace of a few steps, for TensorBoard.
        resume: go on from last.pt in the run's folder (True), or from this checkpoint, in its folder. On the CPU the
            end is bit-identical to that of a run that was never interrupted.

    Raises UserError for mistakes, in one line; Interrupted after SIGINT or SIGTERM, when
    last.pt is written (main thread only; a second signal acts as it did before).
    """
    device = _device(device)
    if compile and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise UserError("--compile needs a C++ compiler: install g++, or set CXX")
    last = Path(checkpoints or ROOT / "build/checkpoints" / name) / "last.pt"
    if resume and resume is not True:
        if checkpoints and last.parent.resolve() != Path(resume).resolve().parent:
            raise UserError(f"--resume goes on in the folder of {resume}; --checkpoints names another: {checkpoints}")
        last = Path(resume).parent / "last.pt"
    best = last.with_name("best.pt")
    last.parent.mkdir(parents=True, exist_ok=True)  # if that fails, then now rather than after an epoch
    logs = Path(logs or ROOT / "traces/local" / name)

    data = Path(data)
    features = read_metadata(data)
    config, settings = _model_config(preset.model, features), preset.train
    check_comparisons(config, settings)
    batches = {
        split: CriteoBatches(data / split, settings.batch_size, shuffle=split == "train", seed=settings.seed)
        for split in SPLITS
    }
    _check_train_labels(data / "train", batches["train"])

    torch.manual_seed(settings.seed)
    model = DLRM(config, config.vocabularies(features)).to(device)
    optimizer = make_optimizer(model, preset)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    rows, steps = batches["train"].num_rows, batches["train"].num_batches
    logger.info(f"{name}: {parameters:,} parameters on {device}, {rows:,} rows, {steps:,} steps an epoch")

    identity = {"model": _plain(config), "train": _plain(settings), "train rows": rows}
    run = _Run(identity, model, optimizer, device, steps, settings.epochs)
    if resume:
        run.restore(last if resume is True else Path(resume))
        if run.epoch:
            load_checkpoint(best)  # before training on: without it there would be no end
        logger.info(f"resumed at epoch {run.epoch + 1}, step {run.step}")
    elif last.exists():
        logger.warning(f"{last} is of an earlier run: the first checkpoint replaces it (--resume would go on with it)")

    with _threads(settings.threads), SummaryWriter(logs, purge_step=run.done + 1) as writer:
        with _profiler(profile, name, settings.epochs * run.steps - run.done) as profiler, _signals() as caught:
            forward = torch.compile(model) if compile else model
            while run.epoch < settings.epochs and not (settings.patience and run.stale >= settings.patience):
                for _ in _epoch(run, forward, batches["train"], writer, sync_metrics):
                    if profiler:
                        profiler.step()
                    if caught:
                        run.save(last)
                        raise Interrupted(f"in epoch {run.epoch + 1}, after step {run.step} of {run.steps}")
                training_loss = run.losses[run.done - run.steps : run.done].mean().item()
                validation = evaluate(model, batches["validation"], device)
                is_best = run.end_epoch(validation)
                logger.info(
                    f"epoch {run.epoch}: training loss {training_loss:.4f}, "
                    f"validation {validation}{' (best)' if is_best else ''}"
                )
                _write_scalars(writer, "validation", validation, run.done)
                if is_best:
                    run.save(best)
                run.save(last)
                if caught:
                    raise Interrupted(f"after epoch {run.epoch}")

        model.load_state_dict(load_checkpoint(best)["parameters"])
        predictions = {split: predict(model, batches[split], device) for split in ("validation", "test")}
        predictions["held out"] = tuple(map(np.concatenate, zip(*predictions.values(), strict=True)))
        metrics = {split: score(*pair) for split, pair in predictions.items()}
        for split in ("test", "held out"):
            _write_scalars(writer, split.replace(" ", "_"), metrics[split], run.done)
    return Result(model, metrics, run.losses[: run.done].cpu().numpy(), run.history, last.parent)


def train_step(
    model: nn.Module, optimizer: Optimizers, labels: Tensor, dense: Tensor, sparse: Tensor
) -> Tensor:
    """One step; its loss, a scalar on the device. Nothing here waits for the device."""
    optimizer.zero_grad(set_to_none=True)
    loss = F.binary_cross_entropy_with_logits(model(dense, sparse), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


class _Run:
    """What changes during training, and its way into a checkpoint and back."""

    def __init__(
        self,
        identity: dict,
        model: DLRM,
        optimizer: Optimizers,
        device: torch.device,
        steps: int,
        epochs: int,
    ):
        self.identity, self.model, self.optimizer, self.device = identity, model, optimizer, device
        self.steps = steps  # of an epoch
        self.epoch = 0  # epochs finished
        self.step = 0  # steps done in the epoch that runs
        self.stale = 0  # epochs since the best one
        self.best: float | None = None  # its validation log loss
        self.history: list[Metrics] = []
        # One loss a step, on the device: reading it there would make the host wait in every step.
        self.losses = torch.zeros(epochs * steps, device=device)

    @property
    def done(self) -> int:
        """Steps done since the beginning."""
        return self.epoch * self.steps + self.step

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
            if self.done > len(self.losses):  # a run that had asked for more epochs
                self.losses = torch.zeros(self.done, device=self.device)
            self.losses[: self.done] = state["losses"]
        except UserError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{path}: not a usable checkpoint: {_first_line(error)}") from None


def _epoch(run: _Run, model: nn.Module, batches: CriteoBatches, writer: SummaryWriter, sync: bool) -> Iterator[None]:
    """Train from where the run is to the epoch's end, yielding after each step."""
    start = run.epoch * run.steps
    batches.set_epoch(run.epoch)
    with tqdm(total=run.steps, initial=run.step, desc=f"epoch {run.epoch + 1}", disable=None, leave=False) as bar:
        # The order depends on (seed, epoch) alone, so the batches used before an interruption can be skipped.
        for batch in islice(batches, run.step, None):
            labels, dense, sparse = _to(run.device, *batch)
            loss = run.losses[start + run.step] = train_step(model, run.optimizer, labels, dense, sparse)
            run.step += 1
            bar.update()
            if sync:
                bar.set_postfix_str(f"loss {loss.item():.4f}", refresh=False)
            if run.step % STEPS_PER_REPORT == 0 or run.step == run.steps:
                first = (run.step - 1) // STEPS_PER_REPORT * STEPS_PER_REPORT
                mean = run.losses[start + first : start + run.step].mean().item()
                writer.add_scalar("loss/train", mean, start + run.step)
                bar.set_postfix_str(f"loss {mean:.4f}")
            yield


def save_checkpoint(path: Path, state: dict) -> None:
    """Write state to path, completely or not at all: whatever fails, the file that was there stays whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: the checkpoint cannot be written, what was there is kept: {_cause(error)}") from None
    finally:
        with suppress(OSError):  # after os.replace there is none
            temporary.unlink()


def load_checkpoint(path: str | Path) -> dict:
    """A checkpoint's fields, tensors on the CPU; UserError if there is none or it is damaged.

    "config" {"model": {…}, "train": {…}}, "parameters" and "optimizer" (state_dicts), "random", "epoch", "step",
    "stale", "best" (validation log loss), "history", "losses" float32 [steps].
    """
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare checksums
            if part := archive.testzip():
                raise zipfile.BadZipFile(f"wrong checksum of {part}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    # A damaged file can make zip and unpickler raise nearly anything.
    except Exception as error:
        raise UserError(f"{path}: not a checkpoint, or a damaged one: {_first_line(error)}") from None
    fields = ("config", "parameters", "optimizer", "random", "epoch", "step", "stale", "best", "history", "losses")
    missing = [field for field in fields if not isinstance(state, dict) or field not in state]
    if missing:
        raise UserError(f"{path}: not a checkpoint of model.train: {missing[0]} is missing")
    return state


def _check_same(path: Path, theirs: dict, ours: dict) -> None:
    for field, value in ours.items():
        if field in MAY_DIFFER or field not in theirs:
            continue
        if isinstance(value, dict):
            _check_same(path, theirs[field], value)
        elif field == "cardinalities" and len(theirs[field]) == len(value):
            _check_same(path, *(dict(zip(SPARSE, numbers, strict=False)) for numbers in (theirs[field], value)))
        elif theirs[field] != value:
            raise UserError(f"{path}: {field}: checkpoint has {theirs[field]}, this run {value}")


def _plain(config: DLRMConfig | TrainConfig) -> dict:
    """The fields as plain values, which torch.load accepts with weights_only=True."""
    return {name: value.value if isinstance(value, Enum) else value for name, value in asdict(config).items()}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _cause(error: Exception) -> str:
    """What the operating system said: torch.save wraps a failed write in an error of its own."""
    while not isinstance(error, OSError) and error.__context__:
        error = error.__context__
    return error.strerror or _first_line(error) if isinstance(error, OSError) else _first_line(error)


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return runtime.device()
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise UserError(f"--device: expected cpu, cuda or cuda:N, got {device!r}") from None
    if chosen.type not in ("cpu", "cuda"):
        raise UserError(f"--device: expected cpu, cuda or cuda:N, got {device!r}")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {device}: this machine has {torch.cuda.device_count()} usable CUDA devices")
    return chosen


def _model_config(config: DLRMConfig, features: dict) -> DLRMConfig:
    if config.bottom[0] != len(DENSE):
        raise UserError(f"bottom: expected to begin with {len(DENSE)}, the dense features, got {config.bottom[0]}")
    try:
        return config.with_metadata(features)
    except ValueError as error:
        raise UserError(str(error)) from None


def check_comparisons(config: DLRMConfig, settings: TrainConfig) -> None:
    """Raise UserError if a batch's ids would have to be compared with too many known ones."""
    largest = max(config.cardinalities)
    if config.hash is not Hash.MODULUS and settings.batch_size * (largest + 1) > MAX_COMPARISONS:
        raise UserError(
            f"--hash {config.hash} compares each id with all known ones: batch size {settings.batch_size:,} × "
            f"{largest:,} ids of {SPARSE[config.cardinalities.index(largest)]} is too much; use --hash modulus"
        )


def _check_train_labels(path: Path, batches: CriteoBatches) -> None:
    """One class teaches nothing: say so before training, not after."""
    if not batches.num_rows:
        raise UserError(f"{path}: no rows to train on")
    labels = pyarrow.dataset.dataset(batches.files, format="parquet").scanner(columns=[LABEL])
    seen = {value for batch in labels.to_batches() for value in pc.unique(batch.column(0)).to_pylist()}
    if len(seen) == 1:
        raise UserError(f"{path}: column {LABEL}: expected both 0 and 1, found only {int(seen.pop())}")


def _to(device: torch.device, *tensors: Tensor) -> tuple[Tensor, ...]:
    # Only from pinned memory is a copy to the GPU asynchronous.
    if device.type == "cuda":
        return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
    return tensors


def _profiler(folder: str | Path | None, name: str, steps: int):
    if folder is None:
        return nullcontext()
    needed = sum(PROFILE.values())
    if steps < needed:
        raise UserError(f"--profile: needs {needed} steps, this run has only {steps}; use a smaller --batch-size")
    Path(folder).mkdir(parents=True, exist_ok=True)

    def write(profiler) -> None:
        """A trace that can be passed on: neither its name nor its content says on which machine it was made."""
        with tempfile.TemporaryDirectory() as temporary:
            torch.profiler.tensorboard_trace_handler(temporary, worker_name=name)(profiler)
            (file,) = Path(temporary).iterdir()
            trace = json.loads(file.read_bytes())
        for field in ("host_name", "traceName"):  # traceName is a path
            trace.pop(field, None)
        for event in trace["traceEvents"]:
            arguments = event.get("args", {})
            if "kernel_file" in arguments:  # of generated code, in a folder named after the user
                arguments["kernel_file"] = Path(arguments["kernel_file"]).name
        with gzip.open(Path(folder) / f"{file.name}.gz", "wt") as out:
            json.dump(trace, out)

    schedule = torch.profiler.schedule(**PROFILE, repeat=1)
    # acc_events: or torch warns that it drops the events of earlier cycles, of which there are none.
    options = {"record_shapes": True, "profile_memory": True, "acc_events": True}
    return torch.profiler.profile(schedule=schedule, on_trace_ready=write, **options)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that the first SIGINT or SIGTERM appends itself to, instead of ending the process; the second ends it."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield caught
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def handle(number: int, _frame) -> None:
        caught.append(number)
        restore()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield caught
    finally:
        restore()


def _write_scalars(writer: SummaryWriter, split: str, metrics: Metrics, step: int) -> None:
    for field in ("log_loss", "auc"):
        if (value := getattr(metrics, field)) is not None and math.isfinite(value):
            writer.add_scalar(f"{field}/{split}", value, step)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m model.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, type=Path, metavar="DIR", help="what data.preprocess wrote")
    parser.add_argument("--name", help="of the run's folders (default: PRESET-HASH-INTERACTION)")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="TensorBoard logs (default: traces/local/NAME)")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="default: build/checkpoints/NAME")
    parser.add_argument(
        "--resume", nargs="?", const=True, default=False, type=Path, metavar="PATH",
        help="go on from a checkpoint (default: the run's last.pt)",
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    parser.add_argument("--compile", action="store_true", help="train through torch.compile")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="write a torch.profiler trace of a few steps there")
    parser.add_argument("--sync-metrics", action="store_true", help="read the loss in every step, as the lecture did")
    add_arguments(parser)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit status: 0, 2 for a mistake of the user's, 130 if interrupted."""
    parser = _parser()
    args = parser.parse_args(arguments)
    preset = from_arguments(args, parser)
    logger.remove()
    logger.add(lambda line: tqdm.write(line, end="", file=sys.stderr), format="{time:HH:mm:ss} {message}")
    try:
        result = train(
            preset,
            args.data,
            name=args.name or f"{args.preset}-{preset.model.hash}-{preset.model.interaction}",
            device=args.device,
            compile=args.compile,
            sync_metrics=args.sync_metrics,
            profile=args.profile,
            resume=args.resume,
            checkpoints=args.checkpoints,
            logs=args.logs,
        )
    except (UserError, OSError, torch.OutOfMemoryError) as error:
        print(f"{parser.prog}: error: {_first_line(error)}", file=sys.stderr)
        return 2
    except Interrupted as error:
        print(f"{parser.prog}: interrupted {error}; add --resume to the same command to go on", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; --resume goes on from last.pt, if there is one", file=sys.stderr)
        return 130
    for split, metrics in result.metrics.items():
        print(f"{split}: {metrics}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
