"""Python's signal handlers while a compiled function's results are stored.

    compiled function runs          | results are written back, steps are counted, logs | next function, ...
               Ctrl-C: handler waits ................................................... | handler runs

Python runs handlers as soon as a call has returned, before its result is stored. An exception there would lose the
arrays that were donated to the function, and the steps that it took would not be counted.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # 0.3 us for a call: the functions of `signal` take 3
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]
# The signals for which scripts have handlers: of Ctrl-C, and those with which clusters announce that a job is to end.
# Windows has fewer.
NUMBERS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM")
    if hasattr(signal, name)
]


# Modules whose handlers change nothing of a model: Python's, and the package of the commands.
KNOWN = ("_signal", "bridge")


def has_handlers() -> bool:
    """Return whether user code has set a signal handler, which may run at any time and change anything."""
    handlers = filter(callable, map(_signal.getsignal, NUMBERS))
    return any((getattr(each, "__module__", None) or "").partition(".")[0] not in KNOWN for each in handlers)


@contextmanager
def handlers_wait() -> Iterator[None]:
    """Make signal handlers that are Python functions wait until this context ends."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread has handlers
        yield
        return
    waiting: list[tuple[Handler, int, FrameType | None]] = []
    is_over = False

    def stand_in(handler: Handler) -> Handler:
        def handle(number: int, frame: FrameType | None) -> None:
            if is_over:  # user code has saved it and set it again
                handler(number, frame)
            else:
                waiting.append((handler, number, frame))

        handle.__module__ = getattr(handler, "__module__", None) or ""  # by which `has_handlers` knows it
        return handle

    def restore(number: int, handler: Handler, each: Handler) -> None:
        if _signal.getsignal(number) is each:  # otherwise user code has set another one meanwhile
            _signal.signal(number, handler)

    def call_all() -> None:
        nonlocal is_over
        is_over = True
        with ExitStack() as calls:  # which makes all of them, also if one raises
            for handler, number, frame in reversed(waiting):
                calls.callback(handler, number, frame)

    with ExitStack() as afterwards:  # in reverse order
        afterwards.callback(call_all)
        for number in NUMBERS:
            if callable(handler := _signal.getsignal(number)):
                each = stand_in(handler)
                afterwards.callback(restore, number, handler, each)
                _signal.signal(number, each)
        yield
