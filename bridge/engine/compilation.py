"""How long JAX takes to compile, and compiling beside other work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

_total = 0.0


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    global _total
    if event.startswith("/jax/core/compile/"):
        _total += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_seconds() -> float:
    """The seconds that tracing, lowering and compiling have taken in this process since this module was imported."""
    return _total


def compile_meanwhile(program: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Compile a jitted function in a thread, so that a later call with such arguments finds it compiled.

    What goes wrong here goes wrong again in that call, so nobody has to look at the result.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="compile")
    compiling = pool.submit(lambda: program.lower(*arguments).compile())  # type: ignore[attr-defined]
    pool.shutdown(wait=False)
    return compiling
