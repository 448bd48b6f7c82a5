"""Batches of observations on the host: arrays with the leading axis `num_envs`, or dicts and tuples of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from bridge.observations import map_parts


def new_batch(space: spaces.Space[Any], new_array: Callable[[tuple[int, ...], Any], np.ndarray]) -> Any:
    """Return a batch with the structure of a space.

    Args:
      space: the space of one observation.
      new_array: a function from the shape and dtype of an observation, or of a part of one, to an array; it adds the
        leading axis.

    Raises:
      TypeError: observations of this space are not arrays of numbers, or dicts or tuples of them.
    """
    if isinstance(space, spaces.Dict):
        return {name: new_batch(part, new_array) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(new_batch(part, new_array) for part in space)
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise TypeError(
            "observation_space must be a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of them, "
            f"got {space}."
        )
    return new_array(space.shape or (), space.dtype)


def rows(batch: Any) -> list[Any]:
    """Return the single observations of a batch, as views of it."""
    if isinstance(batch, dict):
        return [dict(zip(batch, parts)) for parts in zip(*[rows(part) for part in batch.values()])]
    if isinstance(batch, tuple):
        return list(zip(*[rows(part) for part in batch]))
    return list(batch)


def take(batch: Any, lanes: np.ndarray | slice) -> Any:
    """Return the batch of some environments: a copy; for a slice, a view."""
    return map_parts(lambda part: part[lanes], batch)


def stack(batch: Any, observations: Sequence[Any]) -> Any:
    """Return a batch of single observations, copied, with the structure and dtypes of another batch."""
    return map_parts(lambda like, *parts: np.array(parts, like.dtype), batch, *observations)


def write_rows(batch: Any, lanes: np.ndarray, source: Any, at: Any) -> None:
    """Write the rows `at` of another batch into the rows `lanes` of this one."""

    def write(part: np.ndarray, other: Any) -> None:
        part[lanes] = np.asarray(other)[at]

    map_parts(write, batch, source)


def references_are_counted() -> bool:
    """Return whether `sys.getrefcount` counts references reliably, which it does not in free-threaded Python."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_gil_enabled is None or is_gil_enabled()


class Takeover:
    """Takes ownership of returned batches, so that nothing else writes to them, and copies them if necessary.

    Code that will write into an array later must hold a reference to it. So an array that owns its memory, and to which
    only the caller holds a reference, is returned as it is. A view, whose memory may be shared, is copied. Where
    references are not counted, everything is copied.
    """

    def __init__(self, space: spaces.Space[Any], trusted: bool = False) -> None:
        """Prepare for batches of observations of a space.

        Args:
          space: the space of one observation.
          trusted: True if the environment is known never to write into returned memory again, though it returns views.

        Raises:
          TypeError: observations of this space are not arrays of numbers, or dicts or tuples of them.
        """
        self._dtypes = new_batch(space, lambda shape, dtype: dtype)
        self._trusted = trusted
        self._alone: list[int] = []
        fresh = new_batch(space, lambda shape, dtype: np.zeros((1, *shape), dtype))
        self._calibrate(fresh)

    def own(self, batch: Any) -> Any:
        """Return the batch, writable and in the space's dtypes. Call this with the batch in a single local variable."""
        # A separate statement, because an expression that contains the batch would hold a reference too.
        holders = None if self._trusted else _holders(batch)
        is_ours = holders is None or (holders == self._alone and references_are_counted())
        return _convert(batch, self._dtypes, copy=not is_ours)

    def _calibrate(self, batch: Any) -> None:
        # How many references the interpreter holds on the way depends on its version: so count them once, as `own`
        # does, on a batch that has no other references.
        holders = None if self._trusted else _holders(batch)
        self._alone = holders or []


def _holders(batch: Any) -> list[int]:
    """Return the reference count of each container and array of a batch; -1 for arrays that do not own their memory."""
    if isinstance(batch, np.ndarray):
        return [sys.getrefcount(batch) if batch.flags.owndata else -1]
    counts = [sys.getrefcount(batch)]
    if isinstance(batch, dict | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            counts += _holders(part)
    return counts


def _convert(batch: Any, dtypes: Any, copy: bool) -> Any:
    def convert(dtype: np.dtype[Any], part: Any) -> np.ndarray:
        array: np.ndarray = np.asarray(part)
        if array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy or not array.flags.writeable else array

    return map_parts(convert, dtypes, batch)
