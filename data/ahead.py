"""Work done in threads before it is asked for, and given in order: the reader, the writer and the generator use it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice, repeat
from typing import TypeVar

from data.cli import signals_wait

T = TypeVar("T")
_END = object()


def in_order(tasks: Iterable[Callable[[], T]], workers: int, ahead: int) -> Iterator[T]:
    """The results of `tasks` in their order, made on `workers` threads, at most `ahead` begun and not yet taken.

    A task is begun when the result before it is taken, or earlier; what a task raises is raised in its place. When the
    iterator is closed the tasks that have not begun never do, and those that have are not waited for; after an error
    they are.
    """
    tasks = iter(tasks)
    pool, begun, is_closed = ThreadPoolExecutor(workers), deque(), False

    def begin(number: int) -> None:
        for task in islice(tasks, number):
            with signals_wait():
                begun.append(pool.submit(task))

    try:
        begin(ahead)
        while begun:
            result = _result(begun.popleft())
            begin(1)
            yield result
    except GeneratorExit:
        # The garbage collector may do so in any thread, even in one that holds the lock by which threads are joined.
        is_closed = True
        raise
    finally:
        with signals_wait():
            pool.shutdown(wait=not is_closed, cancel_futures=True)


def _result(future: Future[T]) -> T:
    while True:
        with signals_wait():
            wait([future], timeout=0.1)  # seconds; a signal comes after them
            if future.done():
                return future.result()


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, the next one being made in a thread while the last one is used."""
    for item in in_order(repeat(lambda: next(items, _END)), workers=1, ahead=1):
        if item is _END:
            return
        yield item
