"""Who asks a model that is served: a program over HTTP, threads that call all the time, and callers that wait."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

SECONDS = 60  # in which a server that we started has to answer
# The server is on this machine: a proxy that the environment names for others is not asked.
_directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(server: str, data: bytes, kind: str) -> bytes | str:
    """The body of the answer to a request for probabilities; where the server refuses, its status and its words.

    kind: the request's Content-Type. Raises ConnectionError, naming the server, if there is no answer in SECONDS.
    """
    request = urllib.request.Request(f"{server}/predict", data, {"Content-Type": kind})
    try:
        with _directly.open(request, timeout=SECONDS) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ConnectionError(f"{server} does not answer: {str(reason) or type(reason).__name__}") from None


@contextmanager
def calling(call: Callable[[], Tensor], threads: int, seconds: float = 0.3, **known: Tensor) -> Iterator[Counter]:
    """Call in threads from some seconds before the block until some after it. Counted is which of the known answers,
    by their names, each call gave: "a mixture" if none."""
    got: Counter[str] = Counter()
    failed: list[Exception] = []
    done = threading.Event()

    def work() -> None:
        try:
            while not done.is_set():
                answer = call()
                got[next((name for name, tensor in known.items() if torch.equal(answer, tensor)), "a mixture")] += 1
        except Exception as error:
            failed.append(error)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        time.sleep(seconds)
        yield got
        time.sleep(seconds)
    finally:
        done.set()
        for worker in workers:
            worker.join()
    if failed:
        raise failed[0]


@dataclass(eq=False)
class Request:
    """A caller's rows, counts float32 [b, 13] and ids int64 [b, 26], and what it waits for: probabilities [b]."""

    counts: Tensor
    ids: Tensor
    future: Future = field(default_factory=Future)
