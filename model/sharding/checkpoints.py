"""A checkpoint that any number of ranks writes and reads, and the single file that can be made of it.

    NAME/last, best        the name of a folder beside them; renamed to, once all of that is written
    NAME/step-000050/      what the tables' pieces hold, each written by its rank (torch.distributed.checkpoint), and
        run.pt             all else: a checkpoint as one process writes it, without the tables' numbers
"""

import io
import os
import shutil
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

from data.cli import UserError
from data.output import complete_file
from model.checkpoints import first_line, load_checkpoint, save_checkpoint
from model.config import DLRMConfig
from model.sharding.pieces import Sharding, pieces, tables_of
from model.sharding.ranks import Lost, SharedError, told

RUN = "run.pt"
WEIGHT = "sparse_arch.tables.weight"  # what run.pt has not


def write_pieces(folder: Path, of_rank: Mapping[str, Tensor], group) -> None:
    """All ranks together write their pieces; UserError, naming the rank, if one cannot."""
    try:
        dcp.save(dict(of_rank), checkpoint_id=folder, process_group=group)
    except CheckpointException as error:
        why = _first(error)
        raise SharedError(f"{folder}: the checkpoint cannot be written, what was there is kept: {why}") from None


def read_pieces(folder: Path, wanted: Mapping[str, Tensor], group=None) -> None:
    """Fill tensors with pieces by their names; group: of the ranks that do so together. UserError if there are none, or
    others, or they are damaged."""
    _check_metadata(folder)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is asked for, without a group
            dcp.load(
                dict(wanted), storage_reader=_Compared(folder), process_group=group, no_dist=group is None
            )
    except CheckpointException as error:
        raise SharedError(f"{folder}: not a checkpoint, or a damaged one: {_first(error)}") from None
    except (OSError, RuntimeError) as error:
        if group is not None:
            raise Lost(first_line(error)) from error
        raise UserError(f"{folder}: not a checkpoint, or a damaged one: {first_line(error)}") from None


def _check_metadata(folder: Path) -> None:
    """Raise UserError unless it is there and whole: torch would print tracebacks, and look for another one."""
    file = folder / ".metadata"
    try:
        _Compared(folder).read_metadata()
    except FileNotFoundError:
        raise UserError(f"{file}: no such file; copy the folder, for {folder.name}/* is without it") from None
    except OSError:
        raise
    except Exception as error:  # of a pickle, any
        raise UserError(f"{file}: damaged: {type(error).__name__}: {first_line(error)}") from None


class _Part(io.FileIO):
    """Bytes begin to end of a file, as if they were all of it."""

    def __init__(self, path: Path, begin: int, end: int):
        super().__init__(path)
        self.begin, self.end = begin, end
        self.seek(0)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        before = {os.SEEK_SET: self.begin, os.SEEK_CUR: super().tell(), os.SEEK_END: self.end}[whence]
        return super().seek(before + offset) - self.begin

    def tell(self) -> int:
        return super().tell() - self.begin

    def read(self, size: int = -1) -> bytes:
        left = max(self.end - super().tell(), 0)
        return super().read(min(size, left) if size >= 0 else left)


class _Compared(dcp.FileSystemReader):
    """Compares the checksums of what it reads, which torch.load does not."""

    def read_data(self, plan, planner):
        for item in plan.items:
            part = self.storage_data[item.storage_index]
            with _Part(self.path / part.relative_path, part.offset, part.offset + part.length) as file:
                try:
                    wrong = zipfile.ZipFile(file).testzip() and "wrong checksum"
                except (zipfile.BadZipFile, EOFError):
                    wrong = "nothing readable"
                if wrong:
                    raise zipfile.BadZipFile(f"{wrong} of {item.storage_index.fqn} in {part.relative_path}")
        return super().read_data(plan, planner)


def _first(error: CheckpointException) -> str:
    rank, (cause, _) = min(error.failures.items())
    while not isinstance(cause, OSError) and (cause.__cause__ or cause.__context__):
        cause = cause.__cause__ or cause.__context__
    return f"rank {rank}: {told(cause)}"


def named(name: Path) -> Path:
    """The folder that `last` or `best` names; UserError if there is no such name."""
    try:
        folder = name.read_text().strip()
    except FileNotFoundError:
        if (file := name.with_suffix(".pt")).is_file():
            message = f"{file}: a single file, from which no ranks go on; they begin with it by --init-from"
            raise UserError(message) from None
        raise UserError(f"{name}: no such checkpoint") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: expected the name of a checkpoint's folder: {first_line(error)}") from None
    if not folder or Path(folder).name != folder:
        raise UserError(f"{name}: expected the name of a checkpoint's folder, found {folder!r}")
    return name.with_name(folder)


def folder_of(path: Path) -> Path:
    """The checkpoint's folder that a path is, or names; UserError for a file of one process's."""
    if path.suffix == ".pt" and path.is_file():
        raise UserError(f"{path}: under torchrun --resume goes on from a checkpoint's folder; see --init-from")
    return path if path.is_dir() else named(path)


def point(name: Path, folder: Path) -> None:
    """Have `last` or `best` name that folder beside it."""
    try:
        with complete_file(name) as file:
            file.write(f"{folder.name}\n".encode())
    except OSError as error:
        raise UserError(f"{name}: the checkpoint cannot be written, what was there is kept: {told(error)}") from None


def remove_unnamed(folder: Path) -> None:
    """Remove the checkpoints that neither `last` nor `best` names: earlier ones, and what killed runs left."""
    kept = set()
    for name in ("last", "best"):
        with suppress(UserError):
            kept.add(named(folder / name))
    for path in folder.glob("step-*"):
        if path.is_dir() and path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def new_folder(parent: Path, step: int) -> Path:
    """A folder for a checkpoint of that step, which is not there yet."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = parent / (f"step-{step:06d}" + f"-{number}" * (number > 1))
        with suppress(FileExistsError):
            path.mkdir()
            return path
    raise UserError(f"{parent}: too many checkpoints of step {step}")


def sync(folder: Path) -> None:
    """Have the folder's entries on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def single(folder: Path) -> dict:
    """A checkpoint's folder as model.checkpoints has a file, but without the optimizer's state: in memory, whole."""
    state = load_checkpoint(folder / RUN)
    if "sharding" not in state["config"]:
        raise UserError(f"{folder}: not a checkpoint of a run under torchrun")
    config, sharding = DLRMConfig(**state["config"]["model"]), Sharding(**state["config"]["sharding"])
    rows = tables_of(config)
    weight = torch.empty(sum(rows), config.embedding_dim)
    tables = weight.split(rows)
    wanted = {
        f"{piece.name}.weight": piece.of(tables[piece.table], sharding.columns) for piece in pieces(rows, sharding)
    }
    read_pieces(folder, wanted)
    state["parameters"][WEIGHT] = weight
    state["optimizer"] = {}
    return state


def write_single(folder: Path, out: Path) -> None:
    """Make a file of a checkpoint's folder, completely or not at all."""
    save_checkpoint(out, single(folder))


def size_of(folder: Path) -> int:
    """Bytes of the single file, about."""
    state = load_checkpoint(folder / RUN)
    config = DLRMConfig(**state["config"]["model"])
    return 4 * config.embedding_dim * sum(tables_of(config)) + (folder / RUN).stat().st_size
