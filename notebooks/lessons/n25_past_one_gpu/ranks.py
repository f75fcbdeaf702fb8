"""A function of the notebook in several processes that can talk to each other, as torchrun would start them."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from kernels.check import fresh
from kernels.check.isolated import source_of

IMPORTED = (
    "torch, torch.distributed.checkpoint, pandas, lessons.shared.dlrm, lessons.n25_past_one_gpu.asked, "
    "lessons.n25_past_one_gpu.exchange, lessons.n25_past_one_gpu.one_rank"
)
LINES, LONGEST = 100, 1000  # of what a rank prints that are shown, and the characters of one
SECONDS = 60  # after so many every rank is ended, whatever it does
CODE = "from lessons.n25_past_one_gpu import one_rank; one_rank.main()"


@dataclass(frozen=True)
class Failed:
    """What is left of a rank that returned nothing: why; whether it is a judge's verdict."""

    why: str
    judged: bool = False

    def __str__(self) -> str:
        return self.why


def run(
    function: Callable, *arguments: object, world: int = 2, waits: float = 20, fails: bool = False, job: str = "",
    seconds: int = SECONDS,
) -> list:
    """Call function(*arguments) in `world` processes that are one gloo process group, with all that the function names
    of the notebook, as source. What each returned, by rank; what they print is printed, rank by rank.

    waits: the seconds that a rank waits for another. fails: whether a rank may fail; then Failed stands for what it
    would have returned. job: "module:name" of what is called with the function in front of the arguments.

    Raises:
        RuntimeError: a rank failed and was not said to. ValueError: a function that cannot be carried.
    """
    try:
        name, source = source_of(function)
    except ValueError as error:
        raise ValueError(unknown(error)) from error
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "solution.py").write_text(source)
        torch.save(arguments, folder / "arguments")
        done = fresh.run(CODE, folder, name, job, str(world), str(waits), str(seconds), imported=IMPORTED)
        if done.returncode:
            raise RuntimeError(f"the process that starts the ranks has ended: {done.stderr.strip()[-300:] or 'killed'}")
        ended = [_ended(folder / f"result{rank}", status) for rank, status in enumerate(json.loads(done.stdout))]
        for rank in range(world):
            with open(folder / f"printed{rank}", errors="replace") as printed:
                lines = (line.rstrip("\n") for line in printed if not line.startswith("[Gloo]"))  # its greeting
                for line in islice(lines, LINES):
                    print(f"rank {rank}: {line[:LONGEST]}")
                if next(lines, None) is not None:
                    print(f"rank {rank}: …")
    failed = [f"rank {rank}: {result}" for rank, result in enumerate(ended) if isinstance(result, Failed)]
    if failed and not fails:
        raise RuntimeError("\n".join(failed))
    return ended


def timed(function: Callable, *arguments: object, **options: object) -> tuple[list, float]:
    """What run() returns, and the seconds that it took; the process that forks the ranks is there already."""
    fresh.run("", imported=IMPORTED)
    start = time.perf_counter()
    return run(function, *arguments, **options), time.perf_counter() - start


def unknown(error: ValueError) -> str:
    """What source_of says, in words for who has not asked for it."""
    text = str(error).replace("isolated=True takes", "give")
    what = text.removeprefix("isolated=True cannot carry ")
    return text if what == text else f"no other process knows {what}: make it an argument"


def _ended(result: Path, status: int) -> object:
    if not result.exists():
        if status == -signal.SIGALRM:
            return Failed("it does not end")
        return Failed(f"killed by {signal.Signals(-status).name}" if status < 0 else "it ended its process")
    how, value = torch.load(result, weights_only=False)
    return value if how == "returned" else Failed(value[1], value[0])
