"""Python's signal handlers while a model trains.

    compiled function runs          | results are written back | callbacks, next function, ...
               Ctrl-C: handler waits .......................... | handler runs

A handler that ran in between would see a half-finished training, and an exception in it would lose the results.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]
# The signals for which scripts have handlers: of Ctrl-C, and those with which clusters announce that a job is to end.
# Windows has fewer.
NUMBERS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM")
    if hasattr(signal, name)
]


class StandIn:
    """Replacement for one signal handler. If user code saves it and sets it again later, the original handler works.

    Attributes:
      handler: the user's, or Python's own for Ctrl-C.
    """

    def __init__(self, signals: Signals, handler: Handler) -> None:
        self._signals, self.handler = signals, handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._signals.handle(self.handler, number, frame)


class Signals:
    """Handling of signals that calls handlers as user code, but never before a compiled function's results are stored.

    Python runs handlers as soon as a call has returned, before its result is stored. An exception there would lose the
    arrays that were donated to a compiled function, and the steps that it took would not be counted. So handlers wait
    until `waiting` ends. This holds for Ctrl-C, and for SIGTERM, SIGUSR1 or SIGALRM, with which clusters announce that
    a job is to end.

    Args:
      after: is called after each handler, which is user code.
    """

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after
        self._stand_ins: dict[int, StandIn] = {}
        self._pending: list[tuple[Handler, int, FrameType | None]] = []
        self._depth, self._waits, self._is_scanned = 0, False, False

    @contextmanager
    def taken_over(self) -> Iterator[None]:
        """Replace all handlers that are Python functions, and restore them afterwards."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread has handlers
            yield
            return
        if self._depth == 0 or not self._is_scanned:
            self._scan()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                for number, stand_in in self._stand_ins.items():
                    now: object = signal.getsignal(number)
                    if now is stand_in:  # otherwise user code has set another one meanwhile
                        signal.signal(number, stand_in.handler)
                self._stand_ins.clear()

    def _scan(self) -> None:
        for number in NUMBERS:
            handler = signal.getsignal(number)
            if isinstance(handler, StandIn) and handler._signals is self:
                self._stand_ins[number] = handler
            elif callable(handler):
                self._stand_ins[number] = stand_in = StandIn(self, handler)
                signal.signal(number, stand_in)
        self._is_scanned = True

    def forget(self) -> None:
        """Note that user code has run, which may have set other handlers."""
        self._is_scanned = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Make handlers wait until this context ends, or `release` is called."""
        with self.taken_over():
            was, self._waits = self._waits, True
            try:
                yield
            finally:
                self._waits = was
                while self._pending and not was:
                    self._call(*self._pending.pop(0))

    def release(self) -> None:
        """Call handlers at once from here on. Those that wait already wait until `waiting` ends."""
        self._waits = False

    def handle(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        """Call a handler now, or later if it has to wait."""
        if self._waits:
            self._pending.append((handler, number, frame))
        else:
            self._call(handler, number, frame)

    def _call(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        finally:
            self._after()
