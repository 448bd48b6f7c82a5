"""Helpers around compiled functions: compile times, compiling in a thread, freed memory, results as NumPy arrays."""

from __future__ import annotations

import contextlib
import ctypes
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxenvs.compilation.default_device import accelerator
from jaxenvs.jax_names import COMPILE_EVENTS

# Parameters of mallopt, from <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# What a call of glibc's functions raises on other systems: a TypeError on Windows, where `CDLL(None)` does not exist.
NO_GLIBC = (OSError, AttributeError, TypeError)
# The largest value to which glibc raises M_MMAP_THRESHOLD by itself, when larger and larger arrays are freed.
MOST_FROM_HEAP = 32 * 2**20

_total = 0.0
_most_from_heap = 0  # the largest value that `keep_freed_memory` was called with


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    global _total
    if event.startswith(COMPILE_EVENTS):
        _total += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_seconds() -> float:
    """Return the seconds spent on tracing, lowering and compiling in this process since this module was imported."""
    return _total


def release_freed_memory() -> None:
    """Return memory to the system that compiling has freed and glibc keeps: 120 MB after PPO."""
    with contextlib.suppress(*NO_GLIBC):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory(most_from_heap: int = MOST_FROM_HEAP) -> None:
    """Keep up to `2 * most_from_heap` bytes that were freed at the end of the heap, for the whole process.

    A call with a smaller value than an earlier one changes nothing.

    An update of a CnnPolicy, or of two million weights, frees and allocates arrays of some megabytes. Whether glibc
    returns them to the system in between depends on where in the heap they happen to lie. If it does, every page of
    every update causes a page fault. With both thresholds set, it does not.

    Args:
      most_from_heap: larger arrays are not allocated from the heap. Where glibc does not allow this value (before
        2.36), MOST_FROM_HEAP is used.
    """
    global _most_from_heap
    if most_from_heap <= _most_from_heap:
        return
    _most_from_heap = most_from_heap
    with contextlib.suppress(*NO_GLIBC):
        mallopt = ctypes.CDLL(None).mallopt
        if not mallopt(M_MMAP_THRESHOLD, most_from_heap):
            mallopt(M_MMAP_THRESHOLD, MOST_FROM_HEAP)
        mallopt(M_TRIM_THRESHOLD, 2 * most_from_heap)


def compile_meanwhile(function: jax.stages.Wrapped, *arguments: object) -> Future[object]:
    """Compile a jitted function in a thread, so that a later call with such arguments finds it compiled.

    It is traced here, in the calling thread, whose contexts (`jax.enable_x64`, ...) are part of what is compiled. An
    error in the thread is raised again by that later call, so the result need not be read.
    """
    lowered = function.lower(*arguments)
    pool = ThreadPoolExecutor(1, thread_name_prefix="compile")
    compiling: Future[object] = pool.submit(lowered.compile)
    pool.shutdown(wait=False)
    return compiling


def to_host(tree: object) -> Any:
    """Return results of a compiled function as NumPy arrays, which must not be written to: on a CPU they are JAX's
    memory.
    """
    if accelerator() is not None:
        return jax.device_get(tree)
    # device_get first starts to copy each array, which takes longer than everything else.
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [np.asarray(leaf) for leaf in leaves])
