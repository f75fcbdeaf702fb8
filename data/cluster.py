"""Dask's processes, of this machine or of a cluster, that call our functions: `distributed` is imported here alone."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, TypeVar

from loguru import logger
from tqdm import tqdm

from data.cli import UserError, signals_wait

if TYPE_CHECKING:
    from distributed import Client

T, R = TypeVar("T"), TypeVar("R")
SHARE = 0.6  # of what a worker has; at 0.8 Dask's pause, at 0.95 they are killed
NO_LIMIT = 2 << 30  # bytes, of workers that say none
ANSWERS_S, START_S = 10, 30  # how long is waited for the scheduler, and for a first worker
SILENT_S = 1  # after which it is said what is waited for
Tell = Callable[[int, int], None]  # told rows and bytes that a task has done so far


class Workers:
    """Those that a scheduler has: some are killed and others come, and what a killed one was doing is begun again."""

    def __init__(self, client: Client, name: str, memory: int, limit: int | None, progress: bool):
        """name: of the whole, for messages. memory: bytes that a task may take; limit: those that there are for it, if
        a worker says it. progress: whether bars are shown, where stderr is a terminal."""
        self.client, self.name, self.memory, self.limit, self.progress = client, name, memory, limit, progress

    def __call__(self, function: Callable[[T], R], items: list[T], what: str) -> list[R]:
        """The results, in the order of the items. What a call raises is raised."""
        bar = tqdm(total=len(items), desc=what, disable=None if self.progress and items else True)
        with bar:
            results = self.settle(function, items, done=lambda _: bar.update())
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def settle(
        self,
        function: Callable[..., R],
        items: list[T],
        *,
        group: Callable[[T], Hashable] = lambda item: None,
        tell: Callable[[int, int, int], None] | None = None,
        done: Callable[[int], Any] = lambda number: None,
    ) -> list[R | Exception | None]:
        """As __call__; but what a call raises stands in its place. After it only those of its group that come before it
        are waited for, and None stands in the place of others.

        tell: is called with an item's number and the rows and bytes that are done of it; then `function` takes, after
            the item, what it tells so. done: is called with the number of each that is done.
        """
        from distributed import as_completed

        results: list[R | Exception | None] = [None] * len(items)
        topic = f"data.preprocess-{uuid.uuid4().hex}"
        if tell is not None:
            self.client.subscribe_topic(topic, lambda event: tell(*event[1]))
        begun = self.client.map(
            _call, range(len(items)), items, function=function, topic=topic if tell else None, pure=False
        )
        number_of = {future.key: number for number, future in enumerate(begun)}
        waiting = dict(enumerate(begun))
        try:
            for future, result in as_completed(begun, with_results=True, raise_errors=False):
                number = number_of[future.key]
                if waiting.pop(number, None) is None:
                    continue  # it was cancelled
                if future.status == "finished":
                    results[number] = result
                    future.release()  # or it would be begun again if the worker that did it is killed
                elif future.status == "error":
                    results[number] = self._error(future.exception(), items[number])
                else:
                    raise UserError(f"{self.name}: lost the scheduler")
                if not isinstance(results[number], Exception):
                    done(number)
                    continue
                later = [n for n in waiting if n > number or group(items[n]) != group(items[number])]
                self.client.cancel([waiting.pop(n) for n in later])
                if not waiting:
                    break
        finally:
            if tell is not None:
                self.client.unsubscribe_topic(topic)
            with signals_wait():
                if waiting and self.client.status == "running":
                    self.client.cancel([*waiting.values()])
        return results

    def _error(self, error: BaseException, item: object) -> Exception:
        from distributed import KilledWorker

        if isinstance(error, KilledWorker):
            return UserError(
                f"{item}: {error.allowed_failures + 1} worker processes were killed while they did it, the last one at "
                f"{error.last_worker.address}; out of memory?"
            )
        if isinstance(error, ModuleNotFoundError):
            return UserError(f"{self.name}: a worker lacks the package {error.name}; give all machines the same ones")
        return error


def _call(number: int, item: T, function: Callable[..., R], topic: str | None) -> R | Exception:
    """In a worker. What is no fault of the code is returned, for Dask logs what is raised, with its traceback."""
    from distributed import get_worker

    worker = get_worker()
    told = [] if topic is None else [lambda rows, read: worker.log_event(topic, [number, rows, read])]
    try:
        return function(item, *told)
    except (UserError, OSError, MemoryError) as error:
        return error


def machine_memory() -> int:
    """Bytes that this machine has, or of them this container's share, if Dask is here to find it."""
    try:
        from distributed.system import MEMORY_LIMIT
    except ModuleNotFoundError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return MEMORY_LIMIT


def memory_of(number: int) -> int:
    """Bytes for a task of each of so many processes of this machine."""
    return int(SHARE * machine_memory() / number)


@contextmanager
def processes(number: int, progress: bool = False) -> Iterator[Workers]:
    """So many of this machine, of one thread each. Raises UserError without the packages."""
    distributed = _distributed()
    import dask

    settings = {
        # A worker has one thread of ours; polars would give it one more for each core.
        "distributed.nanny.pre-spawn-environ.POLARS_MAX_THREADS": 1,
        # Dask would have malloc give back what is freed at once, and each block's memory comes anew from the kernel.
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None,
        # What ends a run is said in one line, by us.
        "distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical",
        # Dask would look at its event loops 50 times a second, at the workers' stacks 100 times, and twice at all that
        # the machine does.
        "distributed.admin.tick.interval": "500ms",
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.worker.profile.enabled": False,
    }
    with ExitStack() as opened:
        directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="data.preprocess-"))
        opened.enter_context(dask.config.set(settings))
        with signals_wait():
            # Ctrl-C goes to all processes of a terminal, and is ours alone: threads and processes that are started
            # from here on do not see it. The tracker of multiprocessing, once started, would lift that.
            resource_tracker.ensure_running()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                cluster = distributed.LocalCluster(
                    n_workers=number, threads_per_worker=1, memory_limit=0, dashboard_address="127.0.0.1:0",
                    local_directory=directory, silence_logs=logging.CRITICAL,
                )
                opened.callback(_close, cluster)
                client = distributed.Client(cluster)
                opened.callback(_close, client)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield Workers(client, f"{number} processes", memory_of(number), machine_memory(), progress)


@contextmanager
def cluster(address: str, progress: bool = False) -> Iterator[Workers]:
    """Those of the scheduler at this address. Raises UserError without the packages, or if it has no worker."""
    distributed = _distributed()
    with ExitStack() as opened:
        client = _client(distributed, address)
        opened.callback(_close, client)
        if not client.scheduler_info(n_workers=-1)["workers"]:
            logger.info("{}: no worker yet; waiting {} s for one", address, START_S)
        try:
            client.wait_for_workers(1, timeout=START_S)
        except TimeoutError:
            raise UserError(f"{address}: no worker in {START_S} s; start some: dask worker {address}") from None
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [worker["memory_limit"] / worker["nthreads"] for worker in workers if worker["memory_limit"]]
        limit = int(min(limits)) if limits else None
        yield Workers(client, address, int(SHARE * limit) if limit else NO_LIMIT, limit, progress)


def _client(distributed: Any, address: str) -> Client:
    """Of the scheduler at this address. Raises UserError if none answers: at once where no machine has that name."""
    answers: queue.SimpleQueue = queue.SimpleQueue()

    def connect() -> None:
        try:
            answers.put(distributed.Client(address, timeout=ANSWERS_S))
        except Exception as error:
            answers.put(error)

    try:
        scheme, location = distributed.comm.parse_address(address)
        if scheme in ("tcp", "tls"):
            socket.getaddrinfo(*distributed.comm.parse_host_port(location))
        # In a thread, which is left behind: where something else listens that does not say a word, it has no end.
        threading.Thread(target=connect, daemon=True).start()
        try:
            answer = answers.get(timeout=SILENT_S)
        except queue.Empty:
            logger.info("{}: no scheduler yet; waiting {} s for it", address, ANSWERS_S)
            answer = answers.get(timeout=ANSWERS_S + SILENT_S)
    except (ValueError, OSError, queue.Empty) as error:
        answer = error
    if not isinstance(answer, Exception):
        return answer
    why = getattr(answer, "strerror", None) or str(answer) or f"nothing in {ANSWERS_S} s"
    if not isinstance(answer, ValueError | OSError | ImportError | queue.Empty):
        why = "what listens there is something else"
    raise UserError(f"{address}: no scheduler of Dask answers: {why}")


def _close(opened: Any) -> None:
    with signals_wait():
        opened.close()


def _distributed() -> Any:
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise UserError(
            f"--processes and --cluster: the package {error.name} is missing; requirements.txt has dask and distributed"
        ) from None
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed
