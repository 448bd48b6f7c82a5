"""Batches of observations: arrays or tensors with the leading axis `num_envs`, or dicts and tuples of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from bridge.observations import map_parts, parts_of
from bridge.sb3 import Space


def new_batch(space: Space, new_array: Callable[[tuple[int, ...], npt.DTypeLike], object]) -> Any:
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


def take(batch: Any, env_indices: np.ndarray | slice) -> Any:
    """Return the batch of some environments: a copy; for a slice, a view."""
    return map_parts(lambda part: part[env_indices], batch)


def stack(batch: object, observations: Sequence[object]) -> Any:
    """Return a batch of single observations, copied, with the structure and dtypes of another batch."""
    return map_parts(lambda like, *parts: np.array(parts, like.dtype), batch, *observations)


def write_rows(batch: object, env_indices: np.ndarray, source: object, at: np.ndarray) -> None:
    """Write the rows `at` of another batch into the rows `env_indices` of this one."""

    def write(part: Any, other: object) -> None:
        part[env_indices] = (other if isinstance(other, torch.Tensor) else np.asarray(other))[at]

    map_parts(write, batch, source)


def device_of(batch: object) -> torch.device | None:
    """Return where the tensors of a batch are; None if it is of arrays."""
    part = parts_of(batch)[0]
    return part.device if isinstance(part, torch.Tensor) else None


def as_array(value: object) -> np.ndarray:
    """Return a NumPy array of what may be a tensor, on any device. It shares memory with a tensor on the CPU."""
    return value.numpy(force=True) if isinstance(value, torch.Tensor) else np.asarray(value)


def references_are_counted() -> bool:
    """Return whether `sys.getrefcount` counts references reliably, which it does not in free-threaded Python."""
    is_gil_enabled = getattr(sys, "_is_gil_enabled", None)
    return is_gil_enabled is None or is_gil_enabled()


def is_unshared(array: np.ndarray) -> bool:
    """Return whether an array owns its memory, and nothing but the caller's caller holds a reference to it."""
    return array.flags.owndata and sys.getrefcount(array) == ALONE and references_are_counted()


def _count(array: np.ndarray) -> int:
    return sys.getrefcount(array)


def _alone() -> int:
    array = np.zeros(1)
    return _of_an_argument(array)


def _of_an_argument(array: np.ndarray) -> int:
    return _count(array)


# How many references there are if nothing else holds one. How many the interpreter itself holds on the way depends on
# its version: so they are counted once, through as many calls.
ALONE = _alone()
