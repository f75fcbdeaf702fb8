"""torch.cuda's streams and captures without a GPU, for tests of the order of events."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch


class FakeGraph:
    capturing: FakeGraph | None = None

    def replay(self) -> None:
        self.work()


def install(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have torch.cuda's streams, events and captures be fakes; the list says what was done on the captured stream."""
    done = []

    class Stream:
        def wait_stream(self, other: Stream) -> None:
            done.append(f"{self.name} waits for {other.name}")

        def wait_event(self, event: str) -> None:
            done.append(f"{self.name} waits for {event}")

        def record_event(self) -> str:
            done.append(f"event on {self.name}")
            return "the event"

        def __init__(self, *_, name: str = "side", priority: int = 0):
            self.name = name

    @contextmanager
    def graph(captured: FakeGraph, *, stream: Stream, capture_error_mode: str):
        done.append(f"capture on {stream.name}")
        FakeGraph.capturing = captured
        yield
        FakeGraph.capturing = None

    @contextmanager
    def stream(chosen: Stream):
        done.append(f"on {chosen.name}")
        yield

    here = Stream(name="current")
    fakes = {"Stream": Stream, "stream": stream, "graph": graph, "CUDAGraph": FakeGraph}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: here)
    return done
