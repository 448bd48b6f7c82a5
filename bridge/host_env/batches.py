"""Batches of observations on the host: arrays with the leading axis `num_envs`, or dicts and tuples of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from bridge.observations import map_parts


def new_batch(space: spaces.Space[Any], new_array: Callable[[tuple[int, ...], Any], np.ndarray]) -> Any:
    """Return a batch with the structure of a space; `new_array` makes an array of the shape and dtype of each part.

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
