"""Programs and the host: compile times, compiling beside other work; results as NumPy arrays."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxenvs.jax_names import COMPILE_EVENTS

# Of mallopt, <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# What asking for glibc's functions raises elsewhere; a TypeError on Windows, which has no library of a process.
NO_GLIBC = (OSError, AttributeError, TypeError)
# To which glibc raises the second by itself, at most, when larger and larger arrays are freed.
MOST_FROM_HEAP = 32 * 2**20

_total = 0.0


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    global _total
    if event.startswith(COMPILE_EVENTS):
        _total += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_seconds() -> float:
    """The seconds that tracing, lowering and compiling have taken in this process since this module was imported."""
    return _total


def release_freed_memory() -> None:
    """Give back to the system what compiling took and has freed, which glibc keeps: 120 MB after PPO."""
    with contextlib.suppress(*NO_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def keep_freed_memory(most_from_heap: int = MOST_FROM_HEAP) -> None:
    """Keep up to twice as many bytes that were freed at the end of the heap, for the whole process.

    An update of a CnnPolicy, or of two million weights, frees and takes again arrays of some megabytes. Whether glibc
    gives them back to the system in between depends on where in the heap they happen to lie, and then every page of
    every update is a fault. With both thresholds set, it does not.

    Args:
      most_from_heap: larger arrays are not taken from the heap; or those larger than MOST_FROM_HEAP, where glibc allows
        no more (before 2.36).
    """
    with contextlib.suppress(*NO_GLIBC):
        mallopt = ctypes.CDLL(None).mallopt
        if not mallopt(M_MMAP_THRESHOLD, most_from_heap):
            mallopt(M_MMAP_THRESHOLD, MOST_FROM_HEAP)
        mallopt(M_TRIM_THRESHOLD, 2 * most_from_heap)


def compile_meanwhile(program: Callable[..., Any], *arguments: object) -> Future[object]:
    """Compile a jitted function in a thread, so that a later call with such arguments finds it compiled.

    It is traced here, in the calling thread, whose contexts (`jax.enable_x64`, ...) are part of what is compiled.
    What goes wrong in the thread goes wrong again in that call, so nobody has to look at the result.
    """
    lowered = program.lower(*arguments)  # type: ignore[attr-defined]
    pool = ThreadPoolExecutor(1, thread_name_prefix="compile")
    compiling = pool.submit(lowered.compile)
    pool.shutdown(wait=False)
    return compiling


def to_host(tree: Any) -> Any:
    """What a program gave as NumPy arrays, which are not for writing; on a CPU they are JAX's own memory."""
    if jax.default_backend() != "cpu":
        return jax.device_get(tree)
    # device_get first starts to copy each array, and that takes longer than all the rest.
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [np.asarray(leaf) for leaf in leaves])
