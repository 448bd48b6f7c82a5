"""The tag of a slot: all that a replay store keeps of where episodes begin and end, in one int32.

A tag of 0 or more says that the slot ends no episode, and is its age: the steps since its episode began. A negative tag
says that it ends one, how, and in which row of the side ring of ends its final observation is. Nothing here but
operators, so that NumPy, JAX and PyTorch arrays of int32 all work, and plain ints.
"""

from __future__ import annotations

from typing import Any

# Older than this no slot is said to be: no window is so long, and an int32 must hold it.
MAX_AGE = 2**30
# So many rows a side ring may have: a tag has two bits for how the episode ended, and one for that it did.
MAX_ENDS = 2**29


def is_end(tag: Any) -> Any:
    """Whether a slot ends an episode."""
    return tag < 0


def is_done(tag: Any) -> Any:
    """Whether an episode ended at a slot. An end may also be of a slot after which other rows follow than it led to."""
    return (tag < 0) & ((tag & 3) != 3)  # -1 - tag has the other bits


def make_end(end: Any, terminated: Any, truncated: Any) -> Any:
    """The tag of a slot that ends an episode.

    Args:
      end: the row of the side ring that its final observation is in, an int32 below `MAX_ENDS`.
      terminated, truncated: how it ended, bools; both may hold.
    """
    # No factor before a bool: in NumPy that makes an int64 of it.
    return -1 - (4 * end + terminated + truncated + truncated)


def end_row(tag: Any) -> Any:
    """The row of the side ring, of a slot that ends an episode. Of any other, nothing that means anything."""
    return (-1 - tag) >> 2


def terminated(tag: Any) -> Any:
    """Whether a slot ends an episode in a terminal state."""
    return (tag < 0) & ((tag & 1) == 0)  # -1 - tag has the other bits


def truncated(tag: Any) -> Any:
    """Whether a slot ends an episode by truncation; it may be terminal too."""
    return (tag < 0) & ((tag & 2) == 0)


def next_age(tag: Any) -> Any:
    """The age of the slot that comes after one with this tag: 0 after an end, else one more."""
    return (tag >= 0) * (tag + (tag < MAX_AGE))


def age(tag: Any, tag_before: Any) -> Any:
    """The age of a slot, from its tag and that of the slot before it.

    An ending slot has the age that comes after the slot before it: if that is not stored, what comes out must not be
    relied on, and a window of more than one slot could not reach there anyway.
    """
    return (tag >= 0) * tag + (tag < 0) * next_age(tag_before)
