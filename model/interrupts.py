"""Ctrl-C and SIGTERM during training: said at once, obeyed when a checkpoint can be written."""

import os
import signal
import threading
from types import TracebackType


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM (its number), after the running step was finished and the checkpoint written."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.number = number


class Signals:
    """Within this context the first SIGINT or SIGTERM is noted instead of ending the process; the second ends it.

    number: of the signal that came, or None. Handlers can only be set in the main thread; elsewhere none comes.
    waiting_for: what the process has to finish before it can obey; said when the signal comes.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.waiting_for = "the running step"
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            for number in self._before:
                signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def ask(self) -> int | None:
        """number."""
        return self.number

    def check(self, where: str) -> None:
        """Raise Interrupted if a signal came; where: what was finished."""
        if self.number is not None:
            raise Interrupted(where, self.number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, _frame: object) -> None:
        self.number = number
        self._restore()
        self._say(number)

    def _say(self, number: int) -> None:
        name = signal.Signals(number).name
        # Not through a stream, whose lock the interrupted code may hold.
        os.write(2, f"\n{name}: waiting for {self.waiting_for}; a second one ends the process at once\n".encode())
