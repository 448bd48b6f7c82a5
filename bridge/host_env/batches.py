"""Batches of observations on the host: arrays with the leading axis `num_envs`, or dicts and tuples of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from bridge.observations import map_parts


def new_batch(space: spaces.Space[Any], new_array: Callable[[tuple[int, ...], Any], np.ndarray]) -> Any:
    """A batch of the structure of a space.

    Args:
      new_array: makes one, of the shape and dtype of an observation or of a part of one; the leading axis is its own.

    Raises:
      TypeError: observations of this space are no arrays of numbers, nor dicts or tuples of them.
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
    """The observations of a batch one by one, as views of it."""
    if isinstance(batch, dict):
        return [dict(zip(batch, parts)) for parts in zip(*[rows(part) for part in batch.values()])]
    if isinstance(batch, tuple):
        return list(zip(*[rows(part) for part in batch]))
    return list(batch)


def take(batch: Any, lanes: np.ndarray | slice) -> Any:
    """The batch of some lanes, a copy; of a slice of them, a view."""
    return map_parts(lambda part: part[lanes], batch)


def stack(batch: Any, observations: Sequence[Any]) -> Any:
    """A batch of single observations, a copy, in the structure and dtypes of another batch."""
    return map_parts(lambda like, *parts: np.array(parts, like.dtype), batch, *observations)


def write_rows(batch: Any, lanes: np.ndarray, source: Any, at: Any) -> None:
    """Write the rows `at` of another batch into the lanes of this one."""

    def write(part: np.ndarray, other: Any) -> None:
        part[lanes] = np.asarray(other)[at]

    map_parts(write, batch, source)


def references_are_counted() -> bool:
    """Whether `sys.getrefcount` tells who holds an object: not in a free-threaded Python, which counts otherwise."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_gil_enabled is None or is_gil_enabled()


class Takeover:
    """Makes batches that others hand out into batches that nobody else will write to, copying where it must.

    Whoever means to write into an array later has to hold a reference to it. So one that owns its memory and that
    nobody but the caller holds is handed on as it is. A view of memory of which nothing is known is copied; and
    everything is where references are not counted.
    """

    def __init__(self, space: spaces.Space[Any], trusted: bool = False) -> None:
        """
        Args:
          space: of one observation.
          trusted: who hands them out is known to never write into them again, though they are views.

        Raises:
          TypeError: as `new_batch`.
        """
        self._dtypes = new_batch(space, lambda shape, dtype: dtype)
        self._trusted = trusted
        self._alone: list[int] = []
        fresh = new_batch(space, lambda shape, dtype: np.zeros((1, *shape), dtype))
        self._calibrate(fresh)

    def own(self, batch: Any) -> Any:
        """The batch, writable and in the dtypes of the space. Keep it in one local variable until you call this."""
        # In a statement of its own: an expression that has the batch would hold it too.
        holders = None if self._trusted else _holders(batch)
        is_ours = holders is None or (holders == self._alone and references_are_counted())
        return _convert(batch, self._dtypes, copy=not is_ours)

    def _calibrate(self, batch: Any) -> None:
        # How many references the interpreter itself holds on the way is its own affair, and changes with its version:
        # so they are counted once, as `own` counts them, on a batch that nobody else has.
        holders = None if self._trusted else _holders(batch)
        self._alone = holders or []


def _holders(batch: Any) -> list[int]:
    """The references to each container and array of a batch; -1 for an array whose memory is another's."""
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
