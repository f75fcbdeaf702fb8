"""Branches of a CUDA graph's capture: what runs beside that which follows it in the program."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Branches:
    """Those that the captured stream has not joined yet. Multiprocessors go to the captured stream first, which has a
    higher priority (`model.step.GraphedStep`)."""

    def __init__(self) -> None:
        self._open: list[tuple[torch.cuda.Stream, object]] = []

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def begun_at(self, event: torch.cuda.Event, read: object = None) -> Iterator[None]:
        """Within it the current stream is a branch that waits for nothing behind the event.

        read: what the branch reads, kept until `join`, for what else allocates on the captured stream is not to have
        its memory.
        """
        stream = torch.cuda.Stream(priority=0)  # the lowest
        stream.wait_event(event)
        with torch.cuda.stream(stream):
            try:
                yield
            finally:
                self._open.append((stream, read))

    def join(self) -> None:
        """Have the current stream wait for them; of a capture that has failed, which raises, there is none left."""
        opened, self._open = self._open, []
        for stream, _ in reversed(opened):
            torch.cuda.current_stream().wait_stream(stream)
