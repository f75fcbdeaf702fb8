"""Commands as a reader types them, in the repository's folder, and what they print without this machine's paths."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from kernels.runtime import KERNELS

ROOT = KERNELS.parent
FOLDER = Path("build/lesson18")  # of all that the lesson writes, below ROOT
# What nobody reads here: progress, warnings of torch's own files.
NOISE = re.compile(r"Warning|warnings\.warn|return cls|^\s*$|^-- |^\[\d+/\d+\]|^ninja: no work")


class CommandFailed(RuntimeError):
    """A command that ended with another status than 0."""


def environment() -> dict[str, str]:
    """This process's, in which `python` is this Python and finds the repository's packages."""
    paths = [str(ROOT), str(ROOT / "notebooks")]
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
    print(text + f"\nexit status {done.returncode}" if done.returncode else text)
    return seconds


def here(text: str) -> str:
    """The text without the repository's folder, and without those of Python's packages."""
    text = text.replace(f"{ROOT}/", "").replace(f"{ROOT}", ".")
    return re.sub(r"/[\w./-]*/site-packages/", "…/", text)


def build_runner(command: str) -> bool:
    """Whether the command built run_exported and serve_exported. Where something for it is missing, it prints what."""
    for program in ("cmake", "ninja", "g++"):
        if not shutil.which(program, path=environment()["PATH"]):
            print(f"{program} is not here: the C++ programs are not built, and what follows of them is left out.")
            return False
    start = time.perf_counter()
    log = ROOT / FOLDER / "build.log"
    try:
        shell(f"({command}) > {FOLDER}/build.log 2>&1")
    except CommandFailed:
        missing = re.findall(r"Could NOT find (\w+)", log.read_text())
        print(f"Not built, for want of {', '.join(missing) or 'what build.log says'}; its part below is left out.")
        return False
    print(f"built in {time.perf_counter() - start:.0f} s")
    return True


def started(command: str) -> str:
    """Start a server that ends with this process; its address, once it says that it listens."""
    server = subprocess.Popen(
        command.split(), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    atexit.register(server.terminate)
    said = ""
    for line in server.stdout:
        said += line
        if address := re.search(r"http://[\w.:]+", line):
            return address[0]
    raise CommandFailed(f"{command.split()[0]} ended with status {server.wait()}: {here(said)}")
