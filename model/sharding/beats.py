"""The beats by which ranks are known to live, and what is made of one that is silent, or hangs."""

import os
import signal
import time
from collections.abc import Sequence

import torch.distributed as dist

BEAT = 0.25  # seconds between two notes of a rank that it lives
PATIENCE = 6 * BEAT  # how long a rank that lives may be silent
GRACE = 5.0  # seconds of silence, and of a main thread that does nothing, after which a thread ends the process
Beats = dict[int, list[str]]  # of each rank: how many, what it does, where it is


def tell(store: dist.Store, rank: int, beat: int, doing: str, where: str) -> None:
    store.set(f"beat {rank}", f"{beat}\t{doing}\t{where}")


def read(store: dist.Store, world: int) -> Beats:
    """Of the ranks that have beaten."""
    keys = {rank: f"beat {rank}" for rank in range(world)}
    return {rank: store.get(key).decode().split("\t") for rank, key in keys.items() if store.check([key])}


def silent(before: Beats, after: Beats, own: int) -> list[int]:
    """The other ranks that have not beaten in between."""
    return [rank for rank in before if rank != own and rank in after and after[rank][0] == before[rank][0]]


def told(quiet: Sequence[int], beats: Beats, own: int, doing: str) -> str:
    """What is said of ranks that are silent, or else of those that do something else; "" if there are none."""
    if quiet:
        return f"{_named(beats, quiet)} answers no more, {beats[quiet[0]][1]}: killed, or stopped"
    late = [rank for rank, beat in beats.items() if beat[1] != doing and rank != own]
    return f"{_named(beats, late)} hangs, {beats[late[0]][1]}: no answer within --timeout" if late else ""


def _named(beats: Beats, ranks: Sequence[int]) -> str:
    return ", ".join(beats[rank][2] for rank in ranks)


class Watch:
    """Sees, in a thread, that a rank's main thread stands in a CUDA call that does not return: it waits for a device
    that waits for a rank that has ended, and neither hears of a timeout nor of a signal. Made in the main thread."""

    def __init__(self, rank: int, timeout: float):
        self.rank, self.timeout = rank, timeout
        self.came, into = os.pipe()  # a byte for each signal, from C
        for end in (self.came, into):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(into, warn_on_full_buffer=False)
        self.since: dict[int, tuple[str, float]] = {}  # of each rank: the last beat, and when it was new
        self.doing, self.signal = ("", 0.0), 0.0  # what is done since when; when a signal came

    def look(self, beats: Beats, doing: str) -> str:
        """Why the process is to end; "" if it is not. doing: what this rank does."""
        now = time.monotonic()
        for rank, (beat, *_) in beats.items():
            if self.since.get(rank, ("",))[0] != beat:
                self.since[rank] = beat, now
        if self.doing[0] != doing:
            self.doing = doing, now
        try:
            if {signal.SIGINT, signal.SIGTERM} & set(os.read(self.came, 100)):
                self.signal = self.signal or now
        except BlockingIOError:
            pass
        quiet = [rank for rank, (_, since) in self.since.items() if rank != self.rank and now > since + GRACE]
        has_heard = self.signal and now > self.signal + GRACE  # and main does nothing
        waits = now > self.doing[1] + self.timeout + GRACE and (quiet or doing.startswith("in step"))
        return told(quiet, beats, self.rank, doing) if (quiet and has_heard) or waits else ""
