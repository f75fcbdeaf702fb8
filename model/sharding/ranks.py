"""The processes that torchrun started, and how what happens to one of them ends all, with one message.

An error on one rank leaves the others waiting in a collective, which fails: at once where the rank has ended, after the
timeout where it hangs. Who failed has noted it in the store that torchrun's processes share, and who is left reads it
there: the first one to speak says what happened, and the others end without a word. A rank that was killed, or hangs,
is known by its beats, which a thread of each writes there.
"""

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from data.cli import Terminated, UserError
from model.checkpoints import first_line
from model.interrupts import Interrupted, Signals
from model.sharding import beats
from model.sharding.beats import BEAT, PATIENCE, Beats, Watch

T = TypeVar("T")
STARTS = 60  # seconds within which all ranks of a host have started
BEGINNING = "at its beginning"  # where what is wrong may be so on all ranks
LOOKS = 4  # beats between two looks at the others
POLL = 5e-5  # seconds between two questions to a device
NCCL_LATER = timedelta(seconds=60)


class SharedError(UserError):
    """A mistake that all ranks raise: none of them is to be named."""


class Lost(Exception):
    """A collective failed: another rank has ended, or hangs."""


class Ranks:
    """This rank among all. doing: what it does, for whoever asks why it does not answer.

    host: the group for what is the host's: objects, checkpoints; of gloo.
    restarts: how often torchrun has started these processes anew.
    command: whose messages these are.
    """

    def __init__(self, device: torch.device, timeout: float, command: str = "python -m model.train"):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        self.device, self.doing, self.timeout = device, BEGINNING, timeout
        self.is_to_end = False  # whether a signal came: perhaps torchrun's, for another rank has ended
        self.command, self.watch = command, Watch(self.rank, timeout) if device.type == "cuda" else None
        self.where = f"rank {self.rank} ({socket.gethostname()}, process {os.getpid()})"
        self._ended, self._torchrun = threading.Event(), os.getppid()
        backend, options = ("nccl", {"device_id": device}) if device.type == "cuda" else ("gloo", {})
        limit = timedelta(seconds=timeout)
        try:
            # NCCL ends a process without a word, and nobody's collectives in a CUDA graph: wait_for comes before it.
            dist.init_process_group(backend, timeout=limit + NCCL_LATER * (backend == "nccl"), **options)
            self.host = dist.new_group(timeout=limit, backend="gloo") if backend == "nccl" else dist.group.WORLD
            self.notes, own = self._connect(), self._connect()
        except RuntimeError as error:
            leave_to_speak(os.environ["LOCAL_RANK"] == "0")
            raise UserError(f"torchrun: {self.where} does not find the others: {first_line(error)}") from None
        self._tell(own, 0)  # now: a rank may be killed at any time
        self._beating = threading.Thread(target=self._beat, args=(own,), daemon=True)
        self._beating.start()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def of_first(self, function: Callable[[], T]) -> T:
        """What function returns on rank 0, on all; a UserError or OSError of its is raised on all."""
        answer: list = [None, None]
        if self.is_first:
            try:
                answer[0] = function()
            except (UserError, OSError) as error:
                answer[1] = told(error)
        dist.broadcast_object_list(answer, src=0, group=self.host)
        if answer[1]:
            raise SharedError(answer[1])
        return answer[0]

    def of_all(self, value: T) -> list[T]:
        """The values of all ranks."""
        values: list = [None] * self.world
        dist.all_gather_object(values, value, group=self.host)
        return values

    def together(self, function: Callable[[], T]) -> T:
        """function() of each rank; a UserError or OSError of one is raised on all, naming it."""
        result = wrong = None
        try:
            result = function()
        except (UserError, OSError) as error:
            wrong = told(error)
        for rank, message in enumerate(self.of_all(wrong)):
            if message:
                raise SharedError(f"rank {rank}: {message}" if self.world > 1 else message)
        return result

    def wait_for_device(self) -> None:
        """Until it has done what was asked of it; see wait_for."""
        if self.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            self.wait_for(event)

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Until the device got there. Lost, if it does not within the timeout, or if a signal came and another rank
        answers no more. A CUDA call that waits would do so for ever, and no signal would be heard."""
        since, looked, before = time.monotonic(), 0.0, {}
        while not event.query():
            time.sleep(POLL)
            now = time.monotonic()
            if now > since + self.timeout:
                raise Lost("no answer within --timeout")
            if self.is_to_end and now > looked + PATIENCE:
                if beats.silent(before, before := self._beats(), self.rank) or self.notes is None:
                    raise Lost("ended by a signal")
                looked = now

    def check_shared(self, folder: Path) -> None:
        """Raise UserError unless all ranks see the folder that the first one made."""
        token = self.of_first(lambda: _touched(folder / f".shared.{os.getpid()}"))
        try:
            seen = self.of_all(token.exists())
        finally:
            if self.is_first:
                token.unlink()
        if not all(seen):
            rank = seen.index(False)
            raise SharedError(f"{folder}: rank {rank} does not see it; all hosts need it on a file system they share")

    @contextmanager
    def one_message(self) -> Iterator[None]:
        """Within it what ends one rank ends all, and one of them says why: to the others it is SystemExit. At its end
        the process group is left."""
        try:
            yield
            self._leave()
        except Interrupted as error:  # all stop at one step
            with suppress(RuntimeError):  # what was to be saved is
                self._leave()
            if self.is_first:
                raise
            sys.exit(128 + error.number)
        except SharedError:
            self._end(self.is_first)
            raise
        except (UserError, OSError, MemoryError) as error:
            _ignore_sigterm()
            message = told(error)
            self._note(message)
            is_of_one = self.world > 1 and not (self.doing == BEGINNING and self._all_say(message))
            self._end(self._may_speak())
            raise UserError(f"rank {self.rank}: {message}" if is_of_one else message) from None
        except KeyboardInterrupt as error:  # before the first step, or a second signal
            status = 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
            self._end(self.is_first and not self._noted(), status)
            raise
        except (RuntimeError, Lost) as error:
            if not (isinstance(error, Lost) or is_of_a_collective(error)):
                self._note(f"{type(error).__name__}: {first_line(error)}")
                self._end(True, 1)
                raise
            _ignore_sigterm()
            self._kept = error  # with all that the device still works on: to let go of that would be to wait for it
            message = self._noted() or self._why(error)
            is_first = self._may_speak()
            self._end(is_first)
            raise UserError(message) from None
        except BaseException as error:
            self._note(f"{type(error).__name__}: {error}")
            self._end(True, 1)
            raise

    def _leave(self) -> None:
        dist.barrier(group=self.host)  # nobody destroys what another still uses
        self._ended.set()
        self._beating.join()
        dist.destroy_process_group()

    def _end(self, speaks: bool, status: int = 2) -> None:
        """SystemExit, unless this is the rank that speaks. Python's end is to be the process's: a group that has lost a
        rank would wait for its timeout, and let the others wait too."""
        _ignore_sigterm()
        self._ended.set()
        ended = self._asked(lambda notes: notes.add("ended ranks", 1), self.world)
        deadline = time.monotonic() + 2 * PATIENCE
        while self.is_first and ended < self.world and time.monotonic() < deadline:  # the store may end with it
            time.sleep(BEAT / 5)
            ended = self._asked(lambda notes: notes.add("ended ranks", 0), self.world)
        atexit.register(_exit, status)
        if not speaks:
            sys.exit(status)

    # Notes, in a store of torchrun's or of rank 0's. Where that has ended with its rank, there are none.

    def _connect(self) -> dist.Store:
        """A connection of its own: a store answers one question at a time."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=60))
        return dist.PrefixStore(f"model.train/{self.restarts}", store)

    def _beat(self, store: dist.Store) -> None:
        beat, is_there = 0, True
        while not self._ended.wait(BEAT):
            self._end_with_torchrun()
            if is_there:
                beat += 1
                try:
                    self._tell(store, beat)
                    if self.watch and beat % LOOKS == 0:
                        self._end_at_once(self.watch.look(beats.read(store, self.world), self.doing), store)
                except RuntimeError:
                    is_there = False

    def _end_with_torchrun(self) -> None:
        """As by SIGTERM, where that was killed: its ranks would go on, and nobody could stop them all together."""
        if self._torchrun and os.getppid() != self._torchrun:
            if os.environ["LOCAL_RANK"] == "0":
                line = f"torchrun, process {self._torchrun} of {socket.gethostname()}, was killed: its ranks end, too\n"
                os.write(2, line.encode())
            self._torchrun = 0  # a second signal would not wait for the step
            os.kill(os.getpid(), signal.SIGTERM)

    def _end_at_once(self, message: str, store: dist.Store) -> None:
        """If there is something to say; the main thread is not asked."""
        if message and store.add("spoken", 1) == 1:
            os.write(2, f"{self.command}: {message}\n".encode())
        if message:
            os._exit(2)

    def _tell(self, store: dist.Store, beat: int) -> None:
        beats.tell(store, self.rank, beat, self.doing, self.where)

    def _asked(self, question: Callable[[dist.Store], T], otherwise: T) -> T:
        """The store's answer, while there is one."""
        if self.notes is not None:
            try:
                return question(self.notes)
            except RuntimeError:
                self.notes = None
        return otherwise

    def _note(self, message: str) -> None:
        self._asked(lambda notes: notes.set("ended", f"rank {self.rank}: {message}"), None)

    def _noted(self) -> str | None:
        return self._asked(lambda notes: notes.get("ended").decode() if notes.check(["ended"]) else None, None)

    def _all_say(self, message: str) -> bool:
        """Whether the same is wrong on all ranks: an option, or what is asked of the data."""
        self._asked(lambda notes: notes.set(f"wrong {self.rank}", message), None)
        keys = [f"wrong {rank}" for rank in range(self.world)]
        deadline = time.monotonic() + 3 * PATIENCE  # they have come here together
        while not (all_do := self._asked(lambda notes: notes.check(keys), False)) and time.monotonic() < deadline:
            time.sleep(BEAT / 5)
        return all_do and self._asked(lambda notes: {notes.get(key).decode() for key in keys} == {message}, False)

    def _may_speak(self) -> bool:
        """Whether nobody has spoken before; without a store, whose rank is the first one, the next one does."""
        return self._asked(lambda notes: notes.add("spoken", 1) == 1, self.rank == 1)

    def _why(self, error: Exception) -> str:
        """What is known of a collective that failed."""
        time.sleep(BEAT)  # the last beat of a rank that was killed may still be on its way
        before = self._beats()
        deadline = time.monotonic() + PATIENCE
        while self.notes is not None and time.monotonic() < deadline:
            if noted := self._noted():
                return noted
            time.sleep(BEAT)
        after = self._beats()
        if self.notes is None:
            return f"rank 0, or its torchrun, has ended, with the store that all share: {first_line(error)}"
        quiet = beats.silent(before, after, self.rank)
        return beats.told(quiet, after, self.rank, self.doing) or (
            f"the ranks wait for each other, {self.doing}: {first_line(error)}"
        )

    def _beats(self) -> Beats:
        return self._asked(lambda notes: beats.read(notes, self.world), {})


def _ignore_sigterm() -> None:
    """Of torchrun, which has seen another rank end: this one is about to."""
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _touched(path: Path) -> Path:
    path.touch()
    return path


def check_device(device: str | None) -> None:
    """Raise UserError for a --device that is not one for each rank."""
    if device not in (None, "cpu", "cuda"):
        raise UserError(f"--device {device}: under torchrun expected cpu or cuda, of which each rank takes its own")


def leave_to_speak(speaks: bool) -> None:
    """Before the end by an error that other ranks have too: unless this is the one that says it, wait for that one's
    end. torchrun ends all once one has ended, and the imports of the one that speaks may take longer."""
    if not speaks:
        time.sleep(STARTS)


def of_rank(device: str | None) -> torch.device:
    """The device of this rank of its host, of the kind that --device names: by default a GPU if there is one.
    UserError, on the first rank of the host, if it has more ranks than GPUs."""
    check_device(device)
    if device == "cpu" or (device is None and not torch.cuda.is_available()):
        return torch.device("cpu")
    rank, ranks, there = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if there < ranks:
        leave_to_speak(rank == 0)
        raise UserError(f"--device: {ranks} ranks on {socket.gethostname()}, which has {there} usable CUDA devices")
    device = torch.device(f"cuda:{rank}")
    torch.cuda.set_device(device)
    return device


def told(error: BaseException) -> str:
    """What data.cli.user_errors says of it."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error}".removesuffix(": ")
    if isinstance(error, OSError):
        return f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}"
    return first_line(error)


def is_of_a_collective(error: RuntimeError) -> bool:
    """Whether another rank, not this one's work, made it fail."""
    return isinstance(error, dist.DistError) or any(name in str(error) for name in ("gloo", "NCCL", "ncclInternal"))


class SharedSignals(Signals):
    """`Signals` that all ranks obey at the same step.

    own: the number of the signal that this rank got, or None. number: of one that all know of. A second one counts
    SAME seconds after the first: a Ctrl-C reaches a rank from the terminal, and once more by torchrun.
    """

    SAME = 2.0

    NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, ranks: Ranks):
        super().__init__()
        self.ranks, self.own, self.since = ranks, None, 0.0

    def agreed(self, came: Sequence[float]) -> None:
        """came: of each of NUMBERS, how many ranks got it."""
        for number, ranks in zip(self.NUMBERS, came, strict=True):
            if ranks:
                self.number = number

    def ask(self) -> int | None:
        """number, once all have told each other."""
        flags = torch.tensor([self.own == number for number in self.NUMBERS], dtype=torch.int32)
        dist.all_reduce(flags, group=self.ranks.host)
        self.agreed(flags.tolist())
        return self.number

    def _note(self, number: int, _frame: object) -> None:
        self.ranks.is_to_end = True
        if self.own is None:
            self.own, self.since = number, time.monotonic()
            if self.ranks.is_first:
                self._say(number)
        elif time.monotonic() > self.since + self.SAME:
            self._restore()
            os.kill(os.getpid(), number)
