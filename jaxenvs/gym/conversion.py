"""Convert between JAX and Gymnasium: actions in, observations and infos out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from jaxenvs.spaces import leaf_bounds


def checked_action(space: spaces.Space[object], action: object, name: str = "action") -> Any:
    """Return an action as `Environment.step` takes it: arrays in the dtypes of the space.

    Real numbers may lie outside of the bounds: many of Gymnasium's environments clip them, and so do these.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(action, Mapping) or action.keys() != space.spaces.keys():
            raise _wrong_action(space, action, name)
        return {key: checked_action(part, action[key], f"{name}[{key!r}]") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(action, tuple | list) or len(action) != len(space.spaces):
            raise _wrong_action(space, action, name)
        return tuple(checked_action(part, action[i], f"{name}[{i}]") for i, part in enumerate(space.spaces))
    low, high = leaf_bounds(space)
    try:
        array = np.asarray(action)
    except ValueError:  # ragged lists
        raise _wrong_action(space, action, name) from None
    integers = low.dtype.kind != "f"
    if array.shape == space.shape and array.dtype.kind in ("iub" if integers else "fiub"):
        inside = (low <= array) & (array <= high) if integers else ~np.isnan(array)
        if inside.all():
            return array.astype(space.dtype)
    raise _wrong_action(space, action, name)


def _wrong_action(space: spaces.Space[object], action: object, name: str) -> ValueError:
    return ValueError(f"{name} must be a member of {space}, got {action!r}. No environment was stepped.")


def to_numpy(space: spaces.Space[object], value: Any) -> Any:
    """Copy an observation to the host, in new arrays."""
    if isinstance(space, spaces.Dict):
        return {key: to_numpy(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(to_numpy(part, value[i]) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(value)
    return np.array(value, dtype=space.dtype)


def info_to_numpy(info: dict[str, Any]) -> dict[str, Any]:
    """Copy an info on the host: scalars become NumPy's, except bool, which is Python's, as Gymnasium batches it."""

    def own(leaf: np.ndarray) -> Any:
        if leaf.shape == ():
            return bool(leaf) if leaf.dtype == bool else leaf[()]
        return np.array(leaf)

    owned: dict[str, Any] = jax.tree.map(own, info)
    return owned


def vector_info(info: dict[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Batch the infos of the environments in `mask` as Gymnasium does: zeros elsewhere, and the mask as `_key`."""
    infos: dict[str, Any] = {}
    for key, value in info.items():
        if isinstance(value, dict):
            infos[key] = vector_info(value, mask)
        elif isinstance(value, np.ndarray):
            infos[key] = np.zeros_like(value)
            infos[key][mask] = value[mask]
        else:
            infos[key] = object_array(value, mask)
        infos[f"_{key}"] = mask.copy()
    return infos


def object_array(batch: object, mask: np.ndarray) -> np.ndarray:
    """Return the parts of a batch for the environments in `mask`, else None: an object array, shape (num_envs,)."""
    array = np.full(mask.shape, None, dtype=object)
    for index in mask.nonzero()[0]:
        array[index] = jax.tree.map(lambda leaf, index=index: leaf[index].copy(), batch)
    return array
