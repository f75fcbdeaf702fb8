"""data.ahead: results in their order, a bounded number in the making, nothing begun after the end."""

import gc
import queue
import signal
import threading
import time
from functools import partial

import pytest

from data.ahead import in_order, one_ahead


def test_results_come_in_order_and_a_bounded_number_is_begun():
    begun, lock = [], threading.Lock()

    def task(i):
        with lock:
            begun.append(i)
        time.sleep(0.01 * (i % 3))
        return i

    results = []
    for result in in_order((partial(task, i) for i in range(30)), workers=3, ahead=4):
        results.append(result)
        assert len(begun) <= len(results) + 4
    assert results == list(range(30))


def test_what_a_task_raises_is_raised_in_its_place():
    def task(i):
        if i == 2:
            raise ValueError("two")
        return i

    results = in_order((partial(task, i) for i in range(9)), workers=2, ahead=3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)


def test_closing_begins_no_more():
    begun = []
    results = in_order((partial(begun.append, i) for i in range(100)), workers=1, ahead=2)
    next(results)
    results.close()
    assert len(begun) <= 3


def test_the_garbage_collector_waits_for_no_task():
    """It closes what stands in a cycle, in any thread; one that starts holds the lock that joining another takes."""
    begun, goes_on, ended = threading.Event(), threading.Event(), queue.SimpleQueue()

    def task():
        begun.set()
        ended.put(goes_on.wait(20))

    results = in_order([lambda: 0, task], workers=1, ahead=2)
    cycle = [results]
    cycle.append(cycle)
    assert next(results) == 0
    assert begun.wait(300)  # what has not begun never does
    del results, cycle
    gc.collect()
    goes_on.set()
    assert ended.get(timeout=300)


def test_a_signal_while_a_lock_is_taken_is_a_keyboard_interrupt(monkeypatch):
    """It comes where Condition.wait takes its lock again: what is raised there leaves the lock to be released twice."""
    take_again, sent = threading.Condition._acquire_restore, []

    def interrupted(self, state):
        if threading.current_thread() is threading.main_thread() and not sent:
            sent.append(True)
            signal.raise_signal(signal.SIGINT)
        take_again(self, state)

    # An RLock has a way of its own for that; the wait for a thread to start uses a Lock, which has not.
    monkeypatch.setattr(threading.Condition, "_acquire_restore", interrupted)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        list(in_order([lambda: time.sleep(0.2)] * 3, workers=2, ahead=3))
    assert sent
    assert set(threading.enumerate()) <= before


def test_one_ahead_gives_the_same_items_and_passes_errors_on():
    def items():
        yield from "abc"
        raise OSError("disk")

    iterator = one_ahead(items())
    assert [next(iterator) for _ in range(3)] == ["a", "b", "c"]
    with pytest.raises(OSError, match="disk"):
        next(iterator)
    assert list(one_ahead(iter(range(5)))) == [0, 1, 2, 3, 4]
