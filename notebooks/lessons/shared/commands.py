"""Commands as a reader types them, in the repository's folder, and what they print without this machine's paths."""

from __future__ import annotations

import atexit
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from kernels.runtime import KERNELS

ROOT = KERNELS.parent
# What nobody reads here: progress, warnings of torch's own files.
NOISE = re.compile(r"Warning|warnings\.warn|return cls|^\s*$|^-- |^\[\d+/\d+\]|^ninja: no work")


class CommandFailed(RuntimeError):
    """A command that ended with another status than 0."""


def environment() -> dict[str, str]:
    """This process's, in which `python` is this Python and finds the repository's packages."""
    paths = [str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
    }


def shell(command: str, fails: bool = False) -> float:
    """Run a command, print what it prints, and return its seconds. Where it may fail, its status is printed.

    Raises:
        CommandFailed: it ended with another status than 0, with its last lines, and was not said to.
    """
    start = time.perf_counter()
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    _tell(command, done.returncode, done.stderr + done.stdout, fails)
    return seconds


class Started:
    """A command that runs in the background, behind what a cell runs meanwhile. It ends when this process does.

    after: it begins when that one has ended.
    """

    def __init__(self, command: str, after: Started | None = None) -> None:
        self._command, self._after = command, after
        self._status, self._output = 1, ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self, fails: bool = False) -> None:
        """Wait for its end, and print what it printed. CommandFailed: as `shell` says."""
        self._thread.join()
        _tell(self._command, self._status, self._output, fails)

    def _run(self) -> None:
        if self._after is not None:
            self._after._thread.join()
        process = subprocess.Popen(
            ["nice", "bash", "-c", self._command], cwd=ROOT, env=environment(), text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        atexit.register(_end, process)
        output, errors = process.communicate()
        self._status, self._output = process.returncode, errors + output


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def _tell(command: str, status: int, output: str, fails: bool) -> None:
    lines = [line for line in output.splitlines() if not NOISE.search(line)]
    text = here("\n".join(lines))
    if status and not fails:
        raise CommandFailed(f"{command.split()[0]} ended with status {status}: {text[-600:]}")
    if status:
        text += f"\nexit status {status}"
    if text:
        print(text)


def here(text: str) -> str:
    """The text without the repository's folder, and without those of Python's packages."""
    text = text.replace(f"{ROOT}/", "").replace(f"{ROOT}", ".")
    return re.sub(r"/[\w./-]*/site-packages/", "…/", text)
