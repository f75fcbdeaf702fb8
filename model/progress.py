"""What a training run tells while it goes on: a progress bar or log lines, and scalars for TensorBoard."""

import math
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from loguru import logger
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor
from torch.utils.tensorboard.summary import scalar
from tqdm import tqdm

import kernels
from data.cli import UserError
from model.evaluation import Metrics
from model.run import Run

# How often the host waits for the device to read the loss: often enough to watch, too rarely to cost anything.
STEPS_PER_REPORT = 100
# Between two log lines where there is no bar.
SECONDS_PER_LINE = 60
EVENTS = "events.out.tfevents.*"


class Scalars:
    """A run's scalars, in an event file for TensorBoard.

    Once the file cannot be written, a warning says so and nothing more is written: training goes on. torch's
    SummaryWriter would end it, from a thread.

    Args:
        folder: for the event file; made if it is not there. None: nothing is written.
        begin: the first step that will be written; TensorBoard forgets what earlier files of the folder say from there.

    Raises UserError if the file cannot be made.
    """

    def __init__(self, folder: Path | None, begin: int):
        self.file = None
        if folder is None:
            return
        self.path = folder / EVENTS.replace("*", f"{time.time_ns()}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.file = self.path.open("wb")
        except OSError as error:
            raise UserError(f"--logs {folder}: {error.strerror}") from None
        self.records = RecordWriter(self.file)
        self._write(file_version="brain.Event:2")
        self._write(step=begin, session_log=SessionLog(status=SessionLog.START))

    def __enter__(self) -> "Scalars":
        return self

    def __exit__(self, *_) -> None:
        self._close()

    def add(self, name: str, value: float, step: int) -> None:
        self._write(step=step, summary=scalar(name, value))

    def add_metrics(self, split: str, metrics: Metrics, step: int) -> None:
        """Those that are defined."""
        for field in ("log_loss", "auc", "calibration"):
            if (value := getattr(metrics, field)) is not None and math.isfinite(value):
                self.add(f"{field}/{split}", value, step)

    def _write(self, **fields) -> None:
        if self.file is None:
            return
        try:
            self.records.write(Event(wall_time=time.time(), **fields).SerializeToString())
            self.records.flush()
        except OSError as error:
            logger.warning(f"{self.path}: {error.strerror}: no scalars from here on; training goes on")
            self._close()

    def _close(self) -> None:
        if self.file is not None:
            file, self.file = self.file, None
            with suppress(OSError):  # what was buffered and had no room; the warning was given
                file.close()


class Progress:
    """One epoch's progress bar, and every `STEPS_PER_REPORT` steps the mean loss and rows/s, for TensorBoard too.

    Where stderr is no terminal there is no bar, and a log line a minute or so instead. quiet: nor where it is one.

    rate: rows/s over the steps of this epoch that this process did, as text; evaluations are not counted.
    """

    def __init__(self, run: Run, scalars: Scalars, batch_size: int, sync: bool, quiet: bool = False):
        self.run, self.scalars, self.batch_size, self.sync = run, scalars, batch_size, sync
        self.bar = tqdm(
            total=run.steps, initial=run.step, desc=f"epoch {run.epoch + 1}", disable=quiet or None,
            leave=False,
        )
        self.first = self.reported = run.step
        self.seconds, self.begin = 0.0, time.perf_counter()  # of the reports before the last; since it
        self.told = self.begin
        self.rate = "no step"

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self.bar.close()

    @contextmanager
    def paused(self):
        began = time.perf_counter()
        yield
        self.begin += time.perf_counter() - began

    def step(self, loss: Tensor) -> None:
        """A step is done. UserError if a loss since the last report is not finite."""
        run = self.run
        self.bar.update()
        if self.sync:
            self.bar.set_postfix_str(f"loss {loss.item():.4f}", refresh=False)
            kernels.check_ids()
        if run.step % STEPS_PER_REPORT and run.step != run.steps:
            return
        run.check_losses()
        since = (run.step - 1) // STEPS_PER_REPORT * STEPS_PER_REPORT
        mean = run.losses[run.done - (run.step - since) : run.done].mean().item()  # waits for the device
        kernels.check_ids()  # raises if a row was asked for that its table does not have
        now = time.perf_counter()
        rate = self._rows(self.reported, run.step) / (now - self.begin)
        self.seconds += now - self.begin
        self.rate = f"{self._rows(self.first, run.step) / self.seconds:,.0f} rows/s"
        self.reported, self.begin = run.step, now
        self.scalars.add("loss/train", mean, run.done)
        self.scalars.add("rows_per_second/train", rate, run.done)
        shown = f"loss {mean:.4f}, {rate:,.0f} rows/s"
        self.bar.set_postfix_str(shown)
        if self.bar.disable and now - self.told >= SECONDS_PER_LINE and run.step != run.steps:
            logger.info(f"epoch {run.epoch + 1}, step {run.step:,} of {run.steps:,}: {shown}")
            self.told = now

    def _rows(self, first: int, end: int) -> int:
        return min(end * self.batch_size, self.run.rows) - first * self.batch_size
