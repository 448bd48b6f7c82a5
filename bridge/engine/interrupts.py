"""Ctrl-C while a program runs that has taken what only its result gives back."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class HeldInterrupt:
    """Holds Ctrl-C back within its context, until `release`; `deliver` then does what it would have done.

    Python looks for signals as soon as a call has returned, before it keeps the result: what was donated to a program
    would be lost, and the steps that it took would not be counted.
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._held: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> Self:
        # Only the main thread has signals; and what is no function, the system handles.
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._previous = signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """From here on, Ctrl-C does what it did before."""
        if self._previous is not None:
            self._handler, self._previous = self._previous, None
            signal.signal(signal.SIGINT, self._handler)

    def deliver(self) -> None:
        """Do what the one that was held back would have done, if there was one."""
        if self._held is not None:
            held, self._held = self._held, None
            self._handler(*held)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held = number, frame
