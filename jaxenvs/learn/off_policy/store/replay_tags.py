"""Tag of a slot: where episodes begin and end in a replay store, in one int32.

A tag of 0 or more means that the slot ends no episode, and is its age: the steps since its episode began. A negative
tag means that the slot ends an episode; it holds how, and in which row of the ring of ends the final observation is.
All functions consist of operators, so that they work with NumPy, JAX and PyTorch arrays of int32, and plain ints.
"""

from __future__ import annotations

from typing import Any

# Ages stop growing here: no window is that long, and an int32 must hold them.
MAX_AGE = 2**30
# The largest number of rows in a ring of ends: a tag has two bits for how the episode ended, and one for that it did.
MAX_ENDS = 2**29


def is_end(tag: Any) -> Any:
    """Return whether a slot is marked as an end."""
    return tag < 0


def is_done(tag: Any) -> Any:
    """Return whether an episode ended at a slot. Slots whose next row is no successor are ends too, without this."""
    return (tag < 0) & ((tag & 3) != 3)  # -1 - tag has the other bits


def make_end(end: Any, terminated: Any, truncated: Any) -> Any:
    """Return the tag of a slot that ends an episode.

    Args:
      end: the row of the ring of ends with the final observation, an int32 below `MAX_ENDS`.
      terminated, truncated: how it ended, bools; both may hold.
    """
    # No factor before a bool, because NumPy would return an int64.
    return -1 - (4 * end + terminated + truncated + truncated)


def end_row(tag: Any) -> Any:
    """Return the row in the ring of ends for a slot that ends an episode. For any other slot, it has no meaning."""
    return (-1 - tag) >> 2


def terminated(tag: Any) -> Any:
    """Return whether a slot ends an episode in a terminal state."""
    return (tag < 0) & ((tag & 1) == 0)  # -1 - tag has the other bits


def truncated(tag: Any) -> Any:
    """Return whether a slot ends an episode by truncation; it may be terminal too."""
    return (tag < 0) & ((tag & 2) == 0)


def next_age(tag: Any) -> Any:
    """Return the age of the slot after one with this tag: 0 after an end, else one more."""
    return (tag >= 0) * (tag + (tag < MAX_AGE))


def age(tag: Any, tag_before: Any) -> Any:
    """Return the age of a slot, from its tag and the tag of the slot before it.

    An ending slot has the age that comes after the slot before it. If that slot is not stored, the result is not
    reliable, but a window of more than one slot could not reach it anyway.
    """
    return (tag >= 0) * tag + (tag < 0) * next_age(tag_before)
