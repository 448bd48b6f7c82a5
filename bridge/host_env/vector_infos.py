"""Infos as Gymnasium batches them, lane by lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# What tells of the episode before, in a step that has begun the next one.
FINAL = ("final_obs", "_final_obs", "final_info", "_final_info")


def lane_infos(info: Mapping[str, Any], lanes: np.ndarray, num_rows: int) -> list[dict[str, Any]]:
    """What some lanes tell, as a dict for each: Python numbers, and arrays.

    Args:
      info: arrays with a leading axis of `num_rows`, or dicts of them. Where there is a mask `_key`, `key` is told only
        by the lanes in it. What has no such axis is told by all.
      lanes: rows of these arrays.
    """
    infos: list[dict[str, Any]] = [{} for _ in range(len(lanes))]
    for key, value in info.items():
        if key.startswith("_") and key[1:] in info:
            continue
        mask = info.get(f"_{key}")
        tellers = lanes if mask is None else lanes[mask[lanes]]
        targets = infos if mask is None else [row for row, tells in zip(infos, mask[lanes].tolist()) if tells]
        for row, part in zip(targets, _column(value, tellers, num_rows)):
            row[key] = part
    return infos


def _column(value: Any, lanes: np.ndarray, num_rows: int) -> list[Any]:
    if isinstance(value, Mapping):
        return lane_infos(value, lanes, num_rows)
    if hasattr(value, "__array__") and np.shape(value)[:1] == (num_rows,):
        array = np.asarray(value)[lanes]
        return array.tolist() if array.ndim == 1 else list(array)
    return [value] * len(lanes)


def kept(info: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of what all lanes tell, to be read later. Without what tells of the episode before."""
    return {key: _copied(value) for key, value in info.items() if key not in FINAL}


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(part) for key, part in value.items()}
    return np.array(value) if hasattr(value, "__array__") else value
