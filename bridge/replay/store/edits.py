"""Writes into the arrays of a replay buffer, as into SB3's, where the ring has no such array.

A ring stores an observation once. If a slot's next observation is written, or the next slot's observation is
overwritten, the slot gets a row in the side ring of ends, as the last slot of an episode has, with a tag that says that
no episode ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bridge.replay.store import columns, transitions
from bridge.replay.store.columns import pairs
from bridge.replay.store.ring import Ring
from jaxenvs.learn.off_policy.store import replay_tags


def next_observations(ring: Ring, slots: np.ndarray) -> Any:
    """Return the next observations of slots, in new arrays."""
    return transitions.next_observations(ring, slots, transitions.tags(ring, slots))


def write_next_observations(ring: Ring, slots: np.ndarray, name: str | None, values: np.ndarray) -> None:
    """Replace the next observations of slots, each given at most once; of Dict observations the part `name`."""
    tag, following = transitions.tags(ring, slots), next_observations(ring, slots)
    before = following if name is None else following[name]
    changed = columns.differs(before, values).reshape(len(slots), -1).any(axis=1)
    # If nothing is stored, the following slot has any content, perhaps the same, and will be overwritten.
    changed |= (tag >= 0) & ~_is_stored(ring, slots)
    if not changed.any():
        return
    slots, tag = slots[changed], tag[changed]
    following, values = columns.at(following, changed), values[changed]
    following = values if name is None else following | {name: values}
    has_row = replay_tags.is_end(tag)
    for column, each in pairs(ring.end_observation, following):
        columns.write(column, replay_tags.end_row(tag[has_row]), each[has_row])
    _give_rows(ring, slots[~has_row], columns.at(following, ~has_row))
    ring.edited()


def keep_next_observations(ring: Ring, slots: np.ndarray) -> None:
    """Store what the slots before `slots` led to separately, before the observations of `slots` are written."""
    before = (slots - ring.num_envs) % ring.num_slots
    is_natural = (transitions.tags(ring, before) >= 0) & (before // ring.num_envs != ring.newest)
    before = before[is_natural & _is_stored(ring, before)]
    if len(before):
        _give_rows(ring, before, next_observations(ring, before))
        ring.edited()


def dones(ring: Ring, slots: np.ndarray) -> np.ndarray:
    """Return SB3's `dones` of slots, as bools: whether episodes ended there."""
    done: np.ndarray = replay_tags.is_done(transitions.tags(ring, slots))
    return done if ring.not_done is None else done & ~ring.not_done.reshape(-1)[slots]


def timeouts(ring: Ring, slots: np.ndarray) -> np.ndarray:
    """Return SB3's `timeouts` of slots, as bools: whether a time limit ended episodes there."""
    tag = transitions.tags(ring, slots)
    timeout: np.ndarray = replay_tags.truncated(tag) & ~replay_tags.terminated(tag)
    return timeout


def write_dones(ring: Ring, slots: np.ndarray, values: np.ndarray) -> None:
    """Write SB3's `dones` of slots, each at most once."""
    _write_flags(ring, slots, _flags("dones", values), timeouts(ring, slots))


def write_timeouts(ring: Ring, slots: np.ndarray, values: np.ndarray) -> None:
    """Write SB3's `timeouts` of slots, each at most once."""
    _write_flags(ring, slots, dones(ring, slots), _flags("timeouts", values))


def move(ring: Ring, position: int, size: int) -> None:
    """Make the `size` rows before `position` the stored ones, with their next observations."""
    env_indices, newest = np.arange(ring.num_envs), (position - 1) % ring.capacity
    if newest != ring.newest:
        last = next_observations(ring, newest * ring.num_envs + env_indices)
        slots = ring.newest * ring.num_envs + env_indices
        if ring.size:
            # The newest row's next observation is stored apart; an older row's is in the next row, if it is the same.
            following = transitions.observations(ring, slots + ring.num_envs)
            differs = np.zeros(ring.num_envs, bool)
            for one, other in pairs(ring.last_observation, following):
                differs |= columns.differs(one, other).reshape(ring.num_envs, -1).any(axis=1)
            differs &= transitions.tags(ring, slots) >= 0
            _give_rows(ring, slots[differs], columns.at(ring.last_observation, differs))
        for leaf, values in pairs(ring.last_observation, last):
            leaf[...] = values
        tag = ring.tag[newest]
        tag[replay_tags.is_end(tag) & ~replay_tags.is_done(tag)] = 0
    ring.position, ring.size = position, size
    ring.edited()
    ring.storage.flush(ring)  # else the files would describe other rows


def _is_stored(ring: Ring, slots: np.ndarray) -> Any:
    return (ring.newest - slots // ring.num_envs) % ring.capacity < ring.size


def _give_rows(ring: Ring, slots: np.ndarray, following: Any) -> None:
    """Give slots without a row in the side ring one, with their next observations."""
    if len(slots):
        ring.reserve_ends(len(slots))
        ended = np.zeros(len(slots), bool)
        ring.write_ends(slots, following, ended, ended)


def _flags(name: str, values: np.ndarray) -> np.ndarray:
    if not ((values == 0) | (values == 1)).all():
        raise ValueError(f"{name} must be 0 or 1, got {values[(values != 0) & (values != 1)][0]}.")
    flags: np.ndarray = values == 1
    return flags


def _write_flags(ring: Ring, slots: np.ndarray, done: np.ndarray, timeout: np.ndarray) -> None:
    changed = (done != dones(ring, slots)) | (timeout != timeouts(ring, slots))
    if not changed.any():
        return
    slots, done, timeout = slots[changed], done[changed], timeout[changed]
    has_none = transitions.tags(ring, slots) >= 0
    _give_rows(ring, slots[has_none], next_observations(ring, slots[has_none]))
    rows = replay_tags.end_row(transitions.tags(ring, slots))
    ring.tag.reshape(-1)[slots] = replay_tags.make_end(rows, done & ~timeout, timeout)
    alone = timeout & ~done
    if ring.not_done is None and alone.any():
        ring.not_done = np.zeros(ring.tag.shape, bool)
    if ring.not_done is not None:
        ring.not_done.reshape(-1)[slots] = alone
    ring.edited()
