"""How long one program may run before the host gets its turn, for all algorithms."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

# So long a Ctrl-C waits, or a progress bar, at most. Coming back to the host takes some milliseconds off-policy.
SECONDS = 0.2


class Pace:
    """Counts of iterations that take about as long as a program may run: 1 at first, as nobody knows how long that is.

    How a training is cut into programs changes none of its numbers.
    """

    def __init__(self) -> None:
        self._count = 1

    def next(self, most: int) -> int:
        """How many iterations to run next, of `most`."""
        return min(self._count, most)

    @contextmanager
    def running(self, count: int) -> Iterator[None]:
        """While a program runs with so many iterations."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        if seconds > SECONDS:
            self._count = max(1, count // 2)
        elif seconds < SECONDS / 2:
            self._count = max(self._count, 2 * count)
