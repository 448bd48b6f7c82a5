"""Conversion of infos that Gymnasium batches to one dict for each environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from bridge.host_env.batches import as_array
from bridge.sb3 import Infos

# Keys that belong to the previous episode, in a step that has begun the next one.
FINAL = ("final_obs", "_final_obs", "final_observation", "_final_observation", "final_info", "_final_info")


def info_dicts(info: Mapping[str, object], rows: np.ndarray, num_rows: int) -> Infos:
    """Return the infos of some environments, as a dict of Python numbers and arrays for each.

    Args:
      info: arrays or tensors with a leading axis of `num_rows`, or dicts of them. If there is a mask `_key`, only the
        environments in it have `key`. A value without such an axis belongs to all of them.
      rows: the rows of these arrays to return, one for each of these environments.
      num_rows: the length of the leading axis.
    """
    infos: Infos = [{} for _ in range(len(rows))]
    for key, value in info.items():
        if key.startswith("_") and key[1:] in info:
            continue
        mask, with_key, targets = info.get(f"_{key}"), rows, infos
        if mask is not None:
            has_key = as_array(mask)[rows]
            with_key, targets = rows[has_key], [target for target, has in zip(infos, has_key.tolist()) if has]
        for target, part in zip(targets, _column(value, with_key, num_rows)):
            target[key] = part
    return infos


def _column(value: object, rows: np.ndarray, num_rows: int) -> Sequence[object]:
    if isinstance(value, Mapping):
        return info_dicts(value, rows, num_rows)
    if hasattr(value, "__array__") and np.shape(value)[:1] == (num_rows,):
        array = as_array(value[rows]) if isinstance(value, torch.Tensor) else np.asarray(value)[rows]
        return array.tolist() if array.ndim == 1 else list(array)
    return [as_array(value) if isinstance(value, torch.Tensor) else value] * len(rows)


def kept(info: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of the environments' infos, to be read later, without the keys of the previous episode."""
    return {key: _copied(value) for key, value in info.items() if key not in FINAL}


def _copied(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return np.array(value) if hasattr(value, "__array__") else value
