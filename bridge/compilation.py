"""How long JAX took to compile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import jax

_total = 0.0


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    global _total
    if event.startswith("/jax/core/compile/"):
        _total += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)


@contextlib.contextmanager
def compile_seconds() -> Iterator[Callable[[], float]]:
    """Within it, and after it, gives the seconds that tracing, lowering and compiling have taken since it began."""
    start = _total
    yield lambda: _total - start
