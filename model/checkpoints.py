"""Checkpoints: what is in one, how it is written whole or not at all, and how it is read."""

import fcntl
import os
import zipfile
from contextlib import suppress
from dataclasses import asdict
from enum import Enum
from pathlib import Path

import torch

from data.cli import UserError
from model.config import DLRMConfig, TrainConfig

FORMAT = 1  # of a checkpoint: one more when a field or its meaning changes


def save_checkpoint(path: Path, state: dict) -> None:
    """Write state to path, completely or not at all: whatever fails, the file that was there stays whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # as long as this process lives: see remove_leftovers
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path}: the checkpoint cannot be written, what was there is kept: {_cause(error)}") from None
    finally:
        with suppress(OSError):  # after os.replace there is none
            temporary.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left of checkpoints half written; one that is being written is locked."""
    for path in folder.glob(".*.pt.*"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def load_checkpoint(path: str | Path, mmap: bool = False) -> dict:
    """A checkpoint's fields, tensors on the CPU; UserError if there is none or it is damaged. mmap: tensors stay in the
    file until they are used.

    "format" (FORMAT), "config" {"model": {…}, "train": {…}}, "parameters" and "optimizer" (state_dicts), "random",
    "epoch", "step", "stale", "best" (validation log loss), "history", "losses" float32 [steps].
    """
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load does not compare checksums
            if part := archive.testzip():
                raise zipfile.BadZipFile(f"wrong checksum of {part}")
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    # A damaged file can make zip and unpickler raise nearly anything.
    except Exception as error:
        raise UserError(f"{path}: not a checkpoint, or a damaged one: {first_line(error)}") from None
    fields = ("config", "parameters", "optimizer", "random", "epoch", "step", "stale", "best", "history", "losses")
    if not isinstance(state, dict) or "config" not in state:
        raise UserError(f"{path}: not a checkpoint of model.train: config is missing")
    written = state.get("format", 0)  # the first checkpoints did not say
    if written != FORMAT:
        age = "an earlier" if written < FORMAT else "a later"
        raise UserError(f"{path}: written by {age} version of model.train (format {written}, this is {FORMAT}): "
                        "this one cannot go on from it")
    missing = [field for field in fields if field not in state]
    if missing:
        raise UserError(f"{path}: not a checkpoint of model.train: {missing[0]} is missing")
    return state


def is_of_ranks(path: Path) -> bool:
    """Whether this is what ranks under torchrun write: a run's folder, a checkpoint's, or the name of one."""
    if path.is_dir():
        return (path / "run.pt").exists() or is_of_ranks(path / "last")
    return path.name in ("last", "best") and path.exists() and not zipfile.is_zipfile(path)


def load_whole(path: str | Path, mmap: bool = False) -> dict:
    """`load_checkpoint` of a file with all parameters; UserError, saying how it is made, for what ranks under torchrun
    wrote, whose tables are in other files."""
    path = Path(path)
    if path.is_dir():
        folder = path
    elif is_of_ranks(path):
        folder = path.parent
    else:
        state = load_checkpoint(path, mmap)
        if "sharding" not in state["config"] or any("tables." in name for name in state["parameters"]):
            return state
        folder = path.parent
    raise UserError(f"{path}: not a checkpoint's file; of ranks' folders one is made by: python -m model.single_file "
                    f"{folder} --out FILE")


def plain(config: DLRMConfig | TrainConfig) -> dict:
    """The fields as plain values, which torch.load accepts with weights_only=True."""
    return {name: value.value if isinstance(value, Enum) else value for name, value in asdict(config).items()}


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _cause(error: Exception) -> str:
    """What the operating system said: torch.save wraps a failed write in an error of its own."""
    while not isinstance(error, OSError) and error.__context__:
        error = error.__context__
    return error.strerror or first_line(error) if isinstance(error, OSError) else first_line(error)
