"""Transitions of a ring: observations at slots, their next observations, and n-step returns."""

from __future__ import annotations

from typing import Any

import numpy as np

from bridge.replay.store import columns
from bridge.replay.store.columns import map_leaves, pairs
from bridge.replay.store.ring import Ring
from jaxenvs.learn.off_policy.store import replay_tags


def tags(ring: Ring, slots: np.ndarray) -> np.ndarray:
    """Return the tags of slots, which are numbers row * num_envs + environment."""
    return ring.tag.reshape(-1).take(slots, mode="wrap")


def observations(ring: Ring, slots: np.ndarray) -> Any:
    """Return the observations at slots."""
    return map_leaves(lambda column: columns.take(column, slots), ring.observation)


def next_observations(ring: Ring, slots: np.ndarray, tag: np.ndarray) -> Any:
    """Return the next observations of slots, (num,), before any reset, given the tags of these slots."""
    num_envs = ring.num_envs
    following = observations(ring, slots + num_envs)
    exceptions, is_end = [], replay_tags.is_end(tag)
    ended = is_end.nonzero()[0]
    if len(ended):
        exceptions.append((ring.end_observation, ended, replay_tags.end_row(tag[ended])))
    env_indices = slots - ring.newest * num_envs
    last = (env_indices.view(np.uint64) < num_envs).nonzero()[0]  # cast to unsigned, negative numbers are large
    last = last[~is_end[last]]
    if len(last):
        exceptions.append((ring.last_observation, last, env_indices[last]))
    for source, at, rows in exceptions:
        for column, values in pairs(following, source):
            columns.write(column, at, columns.take_rows(values, rows))
    return following


def n_step(ring: Ring, slots: np.ndarray, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the slots that follow within `n_steps`, up to the end of the episode or the newest row.

    Returns:
      (num, n_steps) slots, and how many of them count, from the first on: (num,), at least 1.
    """
    following = (slots[:, None] + np.arange(n_steps) * ring.num_envs) % ring.num_slots
    ended = replay_tags.is_done(tags(ring, following))
    to_end = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, n_steps)
    to_newest = (ring.newest - slots // ring.num_envs) % ring.capacity + 1
    return following, np.minimum(to_end, to_newest)
