"""The two folders of a training run, which it has to itself while it runs: its checkpoints, and its logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from data.cli import UserError
from data.output import locked
from model.checkpoints import remove_leftovers
from model.progress import EVENTS

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class RunFolders:
    """last, best: the checkpoints' paths. logs: the folder for TensorBoard.

    check: raises UserError if another folder has come in the place of one of them.
    """

    last: Path
    logs: Path
    check: Callable[[], None]

    @property
    def best(self) -> Path:
        return self.last.with_name(self.last.name.replace("last", "best"))

    def remove_names(self) -> None:
        """`last`, `best` and best.pt of an earlier run under torchrun: this one, restarted, must not take them for its
        own."""
        for name in (self.last, self.best, self.best.with_suffix(".pt")):
            name.unlink(missing_ok=True)

    def remove_events(self) -> None:
        """Those of an earlier run, with which this one's would mingle in TensorBoard."""
        for events in self.logs.glob(EVENTS):
            events.unlink()


@contextmanager
def run_folders(
    name: str,
    checkpoints: str | Path | None = None,
    logs: str | Path | None = None,
    resume: bool | str | Path = False,
    overwrite: bool = False,
    last: str = "last.pt",
) -> Iterator[RunFolders]:
    """The folders of a run of this name, made and locked; arguments as model.train.train has them. last: the name of
    the checkpoint.

    Raises UserError, before anything in them is touched, if another run is writing in one of them, and for an earlier
    run that neither resume nor overwrite speaks of; OSError if one cannot be made.
    """
    last = Path(checkpoints or ROOT / "build/checkpoints" / name) / last
    if resume and resume is not True:
        if checkpoints and last.parent.resolve() != Path(resume).resolve().parent:
            raise UserError(f"--resume goes on in the folder of {resume}; --checkpoints names another: {checkpoints}")
        last = Path(resume).with_name(last.name)
    logs = Path(logs or ROOT / "traces/local" / name)

    def check() -> None:
        for check_one in checks:
            check_one()

    with ExitStack() as held:
        checks = [held.enter_context(locked(last.parent))]
        try:
            if not (logs.exists() and logs.samefile(last.parent)):  # one folder has one lock
                checks.append(held.enter_context(locked(logs)))
        except OSError as error:
            raise UserError(f"--logs {logs}: {error.strerror}") from None
        remove_leftovers(last.parent)
        if not (resume or overwrite):
            _check_no_earlier_run(last.parent, logs)
        yield RunFolders(last, logs, check)


def _check_no_earlier_run(checkpoints: Path, logs: Path) -> None:
    """Raise UserError if the folders hold one: its checkpoints would go, and in TensorBoard the two would mingle."""
    names = ("last.pt", "best.pt", "last", "best")  # of one process, and under torchrun
    left = [*(checkpoints / name for name in names if (checkpoints / name).exists()), *logs.glob(EVENTS)]
    if left:
        raise UserError(
            f"{left[0]} is of an earlier run: --resume goes on with it, --overwrite replaces it, --name or "
            "--checkpoints and --logs keep it"
        )
