"""The processes of a run of several ranks, on the side of the process that forks them. It imports little."""

from __future__ import annotations

import importlib
import importlib.util
import json
import linecache
import os
import re
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# Where in gloo's C++ a message comes from, and the address of a peer.
PLACE = re.compile(r"^\[[^]]*\] |:? ?\[[\d.:a-f]+\]:\d+")


def main() -> None:
    """sys.argv[1:]: the folder of solution.py and arguments; the name in solution.py; the job that is handed it, or "";
    the number of ranks; the seconds that a rank waits for another; those after which each ends whatever it does."""
    folder, name, job, world, waits, seconds = sys.argv[1:]
    ranks = {}
    for rank in range(int(world)):
        if child := os.fork():
            ranks[child] = rank
            continue
        signal.alarm(int(seconds))
        try:
            _run(Path(folder), name, job, rank, int(world), float(waits))
        finally:
            os._exit(0)
    ended = {}
    while ranks:
        child, status = os.wait()
        ended[ranks.pop(child)] = os.waitstatus_to_exitcode(status)
    print(json.dumps([ended[rank] for rank in sorted(ended)]))


def _run(folder: Path, name: str, job: str, rank: int, world: int, waits: float) -> None:
    """One rank: what it returned or raised goes to a file, what it printed to another."""
    out = os.open(folder / f"printed{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # no other machine can connect
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timedelta(seconds=waits)
        )
        result = "returned", _called(folder, name, job)
    except BaseException as error:
        result = "raised", (isinstance(error, AssertionError), in_words(error))
    sys.stdout.flush()
    torch.save(result, folder / f"unfinished{rank}")
    os.rename(folder / f"unfinished{rank}", folder / f"result{rank}")


def _called(folder: Path, name: str, job: str) -> object:
    spec = importlib.util.spec_from_file_location("solution", folder / "solution.py")
    solution = importlib.util.module_from_spec(spec)
    sys.modules["solution"] = solution
    spec.loader.exec_module(solution)
    function = getattr(solution, name)
    arguments = torch.load(folder / "arguments", weights_only=False)
    if not job:
        return function(*arguments)
    module, _, job = job.partition(":")
    return getattr(importlib.import_module(module), job)(function, *arguments)


def in_words(error: BaseException) -> str:
    """What an error says, less gloo's files and addresses; where it is no assertion, with its type, and with the line
    of solution.py that it came from."""
    if isinstance(error, AssertionError):
        return str(error)
    message = PLACE.sub("", str(error).strip().partition("\n")[0])
    if is_left(message):
        message = message.partition(". ")[0]  # what follows is advice
    return f"{type(error).__name__}: {message}{line_of(error)}"


def line_of(error: BaseException) -> str:
    """", in `…`": the innermost line of solution.py that an error came from; "" if none."""
    for frame, number in reversed([*traceback.walk_tb(error.__traceback__)]):
        if frame.f_code.co_filename.endswith("solution.py"):
            return f", in `{linecache.getline(frame.f_code.co_filename, number).strip()}`"
    return ""


def is_waiting(message: str) -> bool:
    """Whether an error says that a rank waited for another for as long as it may."""
    return bool(re.search(r"[Tt]imed out", message))


def is_left(message: str) -> bool:
    """Whether an error says that the process at a connection's other end is gone."""
    return bool(re.search(r"[Cc]onnection (closed|reset)|Broken pipe", message))


