"""Work done in threads before it is asked for, and given in order: the reader, the writer and the generator use it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, repeat
from typing import TypeVar

T = TypeVar("T")
_END = object()


def in_order(tasks: Iterable[Callable[[], T]], workers: int, ahead: int) -> Iterator[T]:
    """The results of `tasks` in their order, made on `workers` threads, at most `ahead` begun and not yet taken.

    A task is begun when the result before it is taken, or earlier; what a task raises is raised in its place. When the
    iterator is closed the tasks that have not begun never do.
    """
    tasks = iter(tasks)
    with ThreadPoolExecutor(workers) as pool:
        begun = deque(pool.submit(task) for task in islice(tasks, ahead))
        try:
            while begun:
                result = begun.popleft().result()
                begun.extend(pool.submit(task) for task in islice(tasks, 1))
                yield result
        finally:
            for future in begun:
                future.cancel()


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, the next one being made in a thread while the last one is used."""
    for item in in_order(repeat(lambda: next(items, _END)), workers=1, ahead=1):
        if item is _END:
            return
        yield item
