"""Code in a process where nothing but some modules has been imported.

A Python that imports torch takes two seconds of a core, one that exports four. So a process is kept that has imported
them, and it forks for each piece of code.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..runtime import KERNELS

FORKS = """
import json, os, signal, sys, traceback
for line in sys.stdin:
    code, arguments, environment, out, seconds = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for number, name in enumerate(("/dev/null", out + "/stdout", out + "/stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    signal.alarm(seconds)
    status = 0
    try:
        exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)
"""


def run(
    code: str,
    *arguments: str | Path,
    imported: str = "torch",
    started: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] = os.environ,
    seconds: int = 0,
) -> subprocess.CompletedProcess:
    """Run `code` with sys.argv[1:] = arguments, in the repository's root, where only `imported` has been imported.

    environment: the process's, once that has been imported; started: what is set in it before, and stays.
    seconds: after so many SIGALRM ends it; 0: never. Returns the exit status and what was printed.
    """
    forks = _forks(imported, tuple(started.items()))
    with tempfile.TemporaryDirectory() as out:
        asked = code, [*map(str, arguments)], {**environment, **started}, out, seconds
        try:
            forks.stdin.write(json.dumps(asked) + "\n")
            forks.stdin.flush()
            status = forks.stdout.readline()
        except BaseException:  # an interrupt: the next code would be given the status of this one
            os.killpg(forks.pid, signal.SIGKILL)
            _forks.cache_clear()
            raise
        assert status, f"the process that has imported {imported} has ended"
        printed = (Path(out, name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(code, int(status), *printed)


@functools.cache
def _forks(imported: str, started: tuple[tuple[str, str], ...]) -> subprocess.Popen:
    """It ends when this process does: with its standard input. A notebook's interrupt is not for it."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import {imported}\n{FORKS}"], cwd=KERNELS.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | dict(started),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )
