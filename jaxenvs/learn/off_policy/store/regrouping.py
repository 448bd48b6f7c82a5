"""Regroup replay stores for another number of devices: the same steps, with new rings of last observations.

This runs on the host, in NumPy, when a training is saved, and when it continues on other devices.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from jaxenvs.learn.off_policy.store import replay_tags
from jaxenvs.learn.off_policy.store.episode_index import Episodes
from jaxenvs.learn.off_policy.store.replay import Replay, num_ends_for


def regroup(stores: Any, num_devices: int, num_ends: int | None = None) -> Replay:
    """Convert the stores of some devices to stores for `num_devices` devices.

    The new stores hold as many steps as fit: where a ring of ends is too short, the oldest rows are forgotten, as in
    `add`. If devices have stored different numbers of rows, the smallest counts.

    Args:
      stores: NumPy arrays with a leading axis of devices.
      num_ends: rows of each ring; if not given, as many as a new store has.
    """

    def regrouped(leaf: np.ndarray, axis: int) -> Any:
        """Divide among another number of devices; `axis` is the axis of environments."""
        whole = np.concatenate(list(leaf), axis - 1)
        return np.stack(np.split(whole, num_devices, axis - 1))

    def regrouped_tree(tree: Any, axis: int) -> Any:
        return jax.tree.map(lambda leaf: regrouped(leaf, axis), tree)

    position, size = int(stores.position[0]), int(stores.size.min())
    _, capacity, num_envs = stores.tag.shape
    ends = _ends(stores, position, size)
    tag = regrouped(stores.tag, 2)
    envs_per_device = tag.shape[2]
    num_bytes = sum(leaf.dtype.itemsize * math.prod(leaf.shape[3:]) for leaf in jax.tree.leaves(stores.observation))
    if num_ends is None:
        num_ends = num_ends_for(capacity, envs_per_device, num_bytes, whole=stores.episodes is not None)
    # Clear all ends; the loop below sets the ends that are kept. The others are in rows that are not stored, and their
    # last observations are dropped.
    tag = np.where(replay_tags.is_end(tag), np.int32(-1), tag)
    end_slot = np.full((num_devices, num_ends), -1, np.int32)
    end_observation = jax.tree.map(
        lambda leaf: np.zeros((num_devices, num_ends, *leaf.shape[2:]), leaf.dtype), stores.end_observation
    )
    num_ended = np.zeros(num_devices, np.int32)
    for device in range(num_devices):
        row, env_index, source, old = own = ends[:, ends[1] // envs_per_device == device]
        if (too_many := own.shape[1] - num_ends) > 0:
            size = min(size, (position - 1 - int(row[too_many - 1])) % capacity)
            row, env_index, source, old = own[:, too_many:]
        end = np.arange(len(row))
        ended = stores.tag[source, row, env_index % num_envs]
        how = (of(ended).astype(np.int64) for of in (replay_tags.terminated, replay_tags.truncated))
        tag[device, row, env_index % envs_per_device] = replay_tags.make_end(end, *how)
        end_slot[device, end] = row * envs_per_device + env_index % envs_per_device
        for new, leaf in zip(jax.tree.leaves(end_observation), jax.tree.leaves(stores.end_observation)):
            new[device, end] = leaf[source, old]
        num_ended[device] = len(end)

    arrays: dict[str, Any] = {
        "tag": tag,
        "end_observation": end_observation,
        "end_slot": end_slot,
        "num_ended": num_ended,
        "position": np.full(num_devices, position, np.int32),
        "size": np.full(num_devices, size, np.int32),
        "episodes": stores.episodes,
    }
    if stores.episodes is not None:
        names = ("begin", "first", "count", "oldest")
        per_env = {name: regrouped(getattr(stores.episodes, name), 1) for name in names}
        arrays["episodes"] = Episodes(extent=regrouped(stores.episodes.extent, 2), **per_env)
    return Replay(
        observation=regrouped_tree(stores.observation, 2),
        action=regrouped(stores.action, 2),
        reward=regrouped(stores.reward, 2),
        last_observation=regrouped_tree(stores.last_observation, 1),
        **arrays,
    )


def _ends(stores: Any, position: int, size: int) -> np.ndarray:
    """Return the ends of stored episodes, the oldest first: rows, environments of all, devices, and rows of their
    rings.
    """
    _, capacity, num_envs = stores.tag.shape
    device, row, index = np.nonzero(replay_tags.is_end(stores.tag))
    env_index, age = device * num_envs + index, (position - 1 - row) % capacity
    ends = np.stack([row, env_index, device, replay_tags.end_row(stores.tag[device, row, index])])
    order = np.lexsort((env_index, -age))
    return ends[:, order[age[order] < size]]
