"""What the C library does with memory that was freed. It is glibc's that is told; elsewhere nothing happens."""

from __future__ import annotations

import contextlib
import ctypes
import functools

# Of mallopt, <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# To which glibc raises the two by itself, at most, when larger and larger arrays are freed.
MOST_FROM_HEAP = 32 * 2**20
MOST_KEPT = 2 * MOST_FROM_HEAP


def release_freed_memory() -> None:
    """Give back to the system what compiling took and has freed, which the C library keeps: 120 MB after PPO."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def keep_freed_memory() -> None:
    """Keep up to 64 MB that were freed at the end of the heap, for the whole process.

    An update of a CnnPolicy frees and takes again arrays of some megabytes. Whether glibc gives them back to the system
    in between depends on where in the heap they happen to lie, and then every page of every update is a fault. With
    both thresholds set, it does not.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, MOST_FROM_HEAP)
        mallopt(M_TRIM_THRESHOLD, MOST_KEPT)
