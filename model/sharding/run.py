"""A training run of several ranks: its folders, and its state in checkpoints that any number of ranks goes on from."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from loguru import logger
from torch import Tensor

from data.cli import UserError
from model.checkpoints import load_checkpoint, save_checkpoint
from model.run import Run
from model.run_folders import RunFolders, run_folders
from model.sharding.checkpoints import (
    RUN,
    WEIGHT,
    folder_of,
    named,
    new_folder,
    point,
    read_pieces,
    remove_unnamed,
    size_of,
    sync,
    write_pieces,
    write_single,
)
from model.sharding.pieces import tables_of
from model.sharding.ranks import Ranks, SharedError


class ShardedRun(Run):
    """`Run` of all ranks: what each method does, all do together. The paths that it takes are those of the files `last`
    and `best`, or of a checkpoint's folder."""

    def __init__(self, *of_run, ranks: Ranks):
        super().__init__(*of_run)
        self.ranks = ranks
        self.sharding = self.identity["sharding"]
        self.written: tuple[tuple[int, int], Path] | None = None  # the latest checkpoint: of which steps, and where

    def check_losses(self) -> None:
        self.ranks.wait_for_device()
        try:
            super().check_losses()
        except UserError as error:  # the losses are the same on all ranks
            raise SharedError(str(error)) from None

    def _check_parameters(self) -> None:
        self.ranks.together(super()._check_parameters)

    def check_room(self, folder: Path) -> None:
        size = self._size()
        self.ranks.of_first(lambda: self._check_free(folder, size))

    def _size(self) -> int:
        """With all ranks' pieces."""
        own = sum(tensor.numel() * tensor.element_size() for tensor in self._pieces().values())
        return super()._size() - own + sum(self.ranks.of_all(own))

    def _kept(self, folder: Path) -> Iterable[Path]:
        return folder.glob("step-*/*")

    def save(self, path: Path) -> None:
        self.ranks.doing = f"in the checkpoint after step {self.done:,}"
        self.check_losses()
        self._check_parameters()
        if self.written is None or self.written[0] != (self.epoch, self.step):
            self.written = (self.epoch, self.step), self._write(path.parent)
        folder = self.written[1]
        self.ranks.of_first(lambda: self._point(path, folder))
        self._note_saved(folder)

    def _write(self, parent: Path) -> Path:
        folder = self.ranks.of_first(lambda: new_folder(parent, self.done))
        try:
            write_pieces(folder, self._pieces(), self.ranks.host)
            state = self._state()
            self.ranks.of_first(lambda: save_checkpoint(folder / RUN, state))
        except UserError:  # of all
            if self.ranks.is_first:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _point(self, path: Path, folder: Path) -> None:
        sync(folder)
        point(path, folder)
        remove_unnamed(path.parent)

    def _pieces(self) -> dict[str, Tensor]:
        """What a checkpoint holds of this rank's pieces, by names; views."""
        tables, state = self.model.sparse_arch.tables, self.optimizer.parts["tables"].state
        numbers = {"weight": tables.weight.detach()} | {name: one for name, one in state.items() if one.dim()}
        return {
            f"{piece.name}.{name}": part
            for name, all_of_them in numbers.items()
            for piece, part in zip(tables.pieces, tables.split(all_of_them), strict=True)
        }

    def _state(self) -> dict:
        state = super()._state()
        del state["parameters"][WEIGHT]
        for values in state["optimizer"]["tables"]["state"].values():
            del values["sum"]
        return state

    def _load(self, path: Path) -> dict:
        return load_checkpoint(folder_of(path) / RUN)

    def _fill(self, path: Path, state: dict) -> None:
        """Read this rank's pieces to where they are trained, and have the state name those."""
        read_pieces(folder_of(path), self._pieces(), self.ranks.host)
        state["parameters"][WEIGHT] = self.model.sparse_arch.tables.weight.detach()
        if state["optimizer"]["tables"]["state"]:
            state["optimizer"]["tables"]["state"][0]["sum"] = self.optimizer.parts["tables"].state["sum"]

    def restore(self, path: Path, changed=()) -> None:
        super().restore(path, changed)
        folder = folder_of(path)
        # What torchrun restarts goes on from here, though `last` may have been of a later step.
        self.ranks.of_first(lambda: point(folder.with_name("last"), folder))

    def _own(self, state: dict) -> dict:
        """Of a single file's tables only this rank's pieces are read into memory."""
        tables, parameters = self.model.sparse_arch.tables, state["parameters"]
        rows = tables_of(self.model.config)
        whole = parameters.pop(WEIGHT, None)
        separate = [parameters.pop(f"sparse_arch.tables.{table}.weight", None) for table in range(len(rows))]
        of_tables = separate if whole is None else whole.split(rows)
        for piece, part in zip(tables.pieces, tables.split(tables.weight.detach()), strict=True):
            part.copy_(piece.of(of_tables[piece.table], self.sharding["columns"]))
        parameters[WEIGHT] = tables.weight.detach()
        return state


@contextmanager
def shared_folders(ranks: Ranks, *named_: Any, **options: Any) -> Iterator[RunFolders]:
    """`run_folders` that the first rank holds for all; the others have their paths."""
    with ExitStack() as held:
        checks = []

        def hold() -> tuple[Path, Path]:
            folders = held.enter_context(run_folders(*named_, last="last", **options))
            checks.append(folders.check)
            return folders.last, folders.logs

        last, logs = ranks.of_first(hold)
        ranks.check_shared(last.parent)
        yield RunFolders(last, logs, *(checks or [lambda: None]))


def shards_of(path: Path) -> int:
    """The data_shards of the run whose `last` or checkpoint's folder this is."""
    config = load_checkpoint(folder_of(path) / RUN)["config"]
    return config.get("sharding", {}).get("data_shards", 0)


def write_best(folder: Path) -> None:
    """Make best.pt of the best epoch's checkpoint, where this host has memory and the folder room for it."""
    best, out = named(folder / "best"), folder / "best.pt"
    size, there = size_of(best), out.stat().st_size if out.exists() else 0
    wanting = [
        f"{size / 2**30:,.2f} GiB of {what}, and there are {room / 2**30:,.2f}"
        for what, room in (("memory", _available()), ("room", shutil.disk_usage(folder).free + there)) if room < size
    ]
    if wanting:
        logger.warning(f"{out}: takes {wanting[0]}: python -m model.single_file {folder} --out FILE makes it elsewhere")
        return
    write_single(best, out)


def _available() -> int:
    """Bytes of memory that this host can give."""
    with open("/proc/meminfo") as lines:
        sizes = dict(line.split(":") for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024
