"""Columns of the ring, arrays in memory or memory-mapped ones, and conversions of values written into them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch


def leaves(tree: Any) -> tuple[Any, ...]:
    """Return the arrays of an observation: a dict's values, or itself. `jax.tree` takes longer than a whole `add`."""
    return tuple(tree.values()) if isinstance(tree, dict) else (tree,)


def pairs(tree: Any, other: Any) -> Sequence[tuple[Any, Any]]:
    """Return pairs of the arrays of two observations, matched by name, whatever the order of their keys."""
    return [(leaf, other[name]) for name, leaf in tree.items()] if isinstance(tree, dict) else ((tree, other),)


def map_leaves(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `function` to each array of an observation, and to the arrays of the same name in others."""
    if isinstance(tree, dict):
        return {name: function(leaf, *(other[name] for other in rest)) for name, leaf in tree.items()}
    return function(tree, *rest)


def differs(one: Any, other: Any) -> Any:
    """Return where NumPy arrays differ; NaN equals NaN."""
    return (one != other) & ((one == one) | (other == other))


def at(tree: Any, index: Any) -> Any:
    """Return `leaf[index]` of each array of an observation."""
    return map_leaves(lambda leaf: leaf[index], tree)


def write(column: Any, index: Any, values: Any) -> None:
    """Set `column[index] = values`, on whatever device the values are."""
    column[index] = values if isinstance(values, np.ndarray) else to_host(values)


def take(column: Any, slots: np.ndarray) -> Any:
    """Return slots of a column with the leading axes (rows, environments), in the shape of `slots`."""
    return take_rows(column.reshape(-1, *column.shape[2:]), slots)


def take_rows(column: Any, rows: np.ndarray) -> Any:
    """Return a copy of rows of a column, in the shape of `rows`. Indices beyond the end wrap around."""
    # Faster than raising for rows out of range, for which NumPy makes another copy.
    return column.take(rows, 0, None, "wrap")


def to_host(array: Any) -> np.ndarray:
    """Return a torch tensor, JAX array or NumPy array as a NumPy array, without a copy if its memory is on the host."""
    if isinstance(array, torch.Tensor):
        return array.detach().cpu().numpy()
    return np.asarray(array)


def to_tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return an array as a tensor on a device, which may share its memory: pass an array without other references."""
    return torch.from_numpy(array).to(device)


def shaped(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """Return an argument in the expected shape; axes of length one may be missing or added, as in SB3."""
    if isinstance(value, np.ndarray) and value.shape == shape:  # as nearly always: the rest takes as long as a write
        return value
    array = value if isinstance(value, torch.Tensor) else np.asarray(value)
    if math.prod(array.shape) != math.prod(shape):
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(array.shape)}.")
    return array.reshape(shape)


def concrete(tree: Any) -> Any:
    """Return observations of PyTorch, NumPy or JAX as NumPy arrays, without a copy if they are on the host."""
    return map_leaves(to_host, tree)
