"""Columns of the ring, arrays in memory or memory-mapped ones, and what is written into them from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch


def leaves(tree: Any) -> tuple[Any, ...]:
    """The arrays of an observation: of a dict its values, else itself. `jax.tree` takes longer than a whole `add`."""
    return tuple(tree.values()) if isinstance(tree, dict) else (tree,)


def pairs(tree: Any, other: Any) -> Sequence[tuple[Any, Any]]:
    """The arrays of an observation, each with that of the same name in another, whatever the order of their keys."""
    return [(leaf, other[name]) for name, leaf in tree.items()] if isinstance(tree, dict) else ((tree, other),)


def map_leaves(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """`function` of each array of an observation, and of those of the same name in others."""
    if isinstance(tree, dict):
        return {name: function(leaf, *(other[name] for other in rest)) for name, leaf in tree.items()}
    return function(tree, *rest)


def differs(one: Any, other: Any) -> Any:
    """Where NumPy arrays differ; NaN is as good as NaN."""
    return (one != other) & ((one == one) | (other == other))


def at(tree: Any, index: Any) -> Any:
    """`leaf[index]` of each array of an observation."""
    return map_leaves(lambda leaf: leaf[index], tree)


def write(column: Any, index: Any, values: Any) -> None:
    """Set `column[index] = values`, wherever the values are."""
    column[index] = values if isinstance(values, np.ndarray) else to_host(values)


def take(column: Any, slots: np.ndarray) -> Any:
    """Slots of a column whose first two axes are rows and lanes, in the shape of `slots`, as `take_rows`."""
    return take_rows(column.reshape(-1, *column.shape[2:]), slots)


def take_rows(column: Any, rows: np.ndarray) -> Any:
    """Rows of a column, in the shape of `rows`, in memory of their own. Those behind the end are the first again."""
    # Faster than to raise where a row is out of range, for which NumPy makes another copy.
    return column.take(rows, 0, None, "wrap")


def to_host(array: Any) -> np.ndarray:
    """A torch tensor, JAX array or NumPy array as a NumPy array, without a copy where its memory is the host's."""
    if isinstance(array, torch.Tensor):
        return array.detach().cpu().numpy()
    return np.asarray(array)


def to_tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """As a tensor on a device. It may share memory: give what nobody else holds."""
    return torch.from_numpy(array).to(device)


def shaped(name: str, value: Any, shape: tuple[int, ...]) -> Any:
    """The argument of a name in a shape; axes of one may be missing or more, as SB3 has it.

    Raises:
      ValueError: it has another shape.
    """
    array = value if isinstance(value, torch.Tensor) else np.asarray(value)
    if math.prod(array.shape) != math.prod(shape):
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(array.shape)}.")
    return array.reshape(shape)


def concrete(tree: Any) -> Any:
    """Observations of which PyTorch, NumPy or JAX is the owner as NumPy arrays, without a copy where they are here."""
    return map_leaves(to_host, tree)
