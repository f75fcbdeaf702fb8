"""Commands that end: each runs within a limit, writes its output into a log, and says what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ..runtime import KERNELS

ROOT = KERNELS.parent
LOGS = ROOT / "build" / "gpu"
_running: set[subprocess.Popen] = set()
_stopped = threading.Event()


@dataclass
class Outcome:
    """What came of a command: its counts in words, what failed, what was skipped and why.

    code: its exit status. ended: whether it ended by itself, within its limit.
    """

    name: str
    counts: str = ""
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    code: int = 0
    ended: bool = True

    def __str__(self) -> str:
        state = "FAILED" if self.failed else "skipped" if self.skipped and not self.counts else "ok"
        lines = [f"{self.name:<36} {state:<8} {self.seconds:5.0f} s  {self.counts}"]
        lines += [f"    failed   {line}" for line in self.failed]
        return "\n".join(lines + [f"    skipped  {line}" for line in self.skipped])


def command(name: str, arguments: Iterable[str | Path], limit: float, **environment: str) -> tuple[Outcome, str]:
    """Run a command, its output into build/gpu/<name>.log; returns (outcome, output). Failed unless it exits with 0.

    limit: the seconds after which it is ended, with all that it started; it has failed then.
    """
    outcome, start = Outcome(name), time.monotonic()
    if _stopped.is_set():
        raise RuntimeError("make gpu was interrupted")
    log = LOGS / f"{name.replace(' ', '-')}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, arguments)],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | environment,
            start_new_session=True,
        )
        try:
            _running.add(process)
            if _stopped.is_set():  # end_all may have listed what runs before this was added
                end(process)
            outcome.code = process.wait(limit)
        except subprocess.TimeoutExpired:
            outcome.ended = False
        finally:
            end(process)
    outcome.seconds = time.monotonic() - start
    output = log.read_text(errors="replace")
    came = f"exit status {outcome.code}" if outcome.ended else f"did not end within {limit:g} s"
    if outcome.code or not outcome.ended:
        last = " | ".join(output.splitlines()[-3:])[:300]
        outcome.failed.append(f"{came}; the log ends: {last}")
    print(f"{name:<36} {outcome.seconds:5.0f} s  {came}  {log.relative_to(ROOT)}", flush=True)
    return outcome, output


def end(process: subprocess.Popen) -> None:
    """End a process that `command` started, and what it started in its turn."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # another thread has ended it meanwhile
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _running.discard(process)


def end_all() -> None:
    """End every command that runs, and let none begin: they are no children of the terminal, Ctrl-C ends us alone."""
    _stopped.set()
    for process in list(_running):
        end(process)


def cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def at_once(jobs: list[Callable[[], Outcome]], count: int) -> list[Outcome]:
    """The outcomes of the jobs, `count` of them at a time, the first ones first."""
    with ThreadPoolExecutor(max(1, count)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]
