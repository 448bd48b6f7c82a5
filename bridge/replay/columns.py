"""Observations as NumPy arrays or dicts of these, and conversions of what is written into a replay buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

Observation = np.ndarray | dict[str, np.ndarray]
Observations = ArrayLike | Mapping[str, ArrayLike]  # as users give them

# The number of rows that are compared or copied at a time, so that temporary arrays stay small.
ROWS_AT_ONCE = 65_536


def leaves(tree: Observation) -> tuple[np.ndarray, ...]:
    """Return the arrays of an observation: a dict's values, or itself."""
    return tuple(tree.values()) if isinstance(tree, dict) else (tree,)


def map_leaves(function: Callable[..., object], tree: object, *rest: Any) -> Any:
    """Apply `function` to each array of an observation, and to the arrays of the same name in others."""
    if isinstance(tree, dict):
        return {name: function(leaf, *(other[name] for other in rest)) for name, leaf in tree.items()}
    return function(tree, *rest)


def at(tree: Observation, index: int | slice | np.ndarray) -> Any:
    """Return `leaf[index]` of each array of an observation."""
    return map_leaves(lambda leaf: leaf[index], tree)


def write(tree: Observation, index: slice, values: Observation) -> None:
    """Set `leaf[index]` of each array of an observation."""
    map_leaves(lambda leaf, value: leaf.__setitem__(index, value), tree, values)


def take(array: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Return slots, row * n_envs + environment, of an array (rows, n_envs, ...), in the shape of `slots`."""
    # "wrap" is faster than raising for indices out of range, for which NumPy makes another copy.
    return array.reshape(math.prod(array.shape[:2]), *array.shape[2:]).take(slots, 0, None, "wrap")


def differs(one: Observation, other: Observation) -> np.ndarray:
    """Return where observations (rows, n_envs, ...) differ in a bit, (rows, n_envs)."""
    found: np.ndarray | bool = False
    for left, right in zip(leaves(one), leaves(map_leaves(lambda _, same: same, one, other)), strict=True):
        bits = f"u{left.itemsize}"
        unequal = np.ascontiguousarray(left).view(bits) != np.ascontiguousarray(right).view(bits)
        found = unequal.reshape(*left.shape[:2], -1).any(2) | found
    return np.asarray(found)


def pieces(first: int, count: int, capacity: int) -> Iterator[tuple[slice, slice]]:
    """Cut `count` rows of a ring, from row `first` on, where it ends, and into pieces of at most ROWS_AT_ONCE rows.

    Yields:
      The rows of the ring, and their numbers among the `count` rows.
    """
    done = 0
    while done < count:
        row = (first + done) % capacity
        num = min(count - done, capacity - row, ROWS_AT_ONCE)
        yield slice(row, row + num), slice(done, done + num)
        done += num


def as_numpy(array: ArrayLike) -> np.ndarray:
    """Return a torch tensor, JAX array or NumPy array as a NumPy array, without a copy if its memory is on the host."""
    if isinstance(array, torch.Tensor):
        return array.detach().cpu().numpy()
    return np.asarray(array)


def shaped(name: str, value: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """Return an argument in the expected shape; axes of length one may be missing or added, as in SB3."""
    array = as_numpy(value)
    if math.prod(array.shape) != math.prod(shape):
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(array.shape)}.")
    return array.reshape(shape)


def shaped_observation(name: str, observation: Any, lead: tuple[int, ...], shape: Any) -> Observation:
    """Return an observation in the expected shape, (*lead, *shape), where `shape` is a dict for Dict observations."""
    if not isinstance(shape, dict):
        return shaped(name, observation, (*lead, *shape))
    if not (isinstance(observation, dict) and observation.keys() >= shape.keys()):
        came = list(observation) if isinstance(observation, dict) else type(observation).__name__
        raise ValueError(f"{name} must be a dict with the keys {list(shape)}, got {came}.")
    return {part: shaped(name, observation[part], (*lead, *each)) for part, each in shape.items()}
