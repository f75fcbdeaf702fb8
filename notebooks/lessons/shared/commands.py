"""Commands as a reader types them, in the repository's folder, and what they print without this machine's paths."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
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
    lines = [line for line in (done.stderr + done.stdout).splitlines() if not NOISE.search(line)]
    text = here("\n".join(lines))
    if done.returncode and not fails:
        raise CommandFailed(f"{command.split()[0]} ended with status {done.returncode}: {text[-600:]}")
    if done.returncode:
        text += f"\nexit status {done.returncode}"
    if text:
        print(text)
    return seconds


def here(text: str) -> str:
    """The text without the repository's folder, and without those of Python's packages."""
    text = text.replace(f"{ROOT}/", "").replace(f"{ROOT}", ".")
    return re.sub(r"/[\w./-]*/site-packages/", "…/", text)
