"""A ring on the host as the store of a program, and back: whoever has it has all of it, and there is only one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from bridge.buffers.replay import columns
from bridge.buffers.replay.columns import map_leaves
from bridge.buffers.replay.ring import InMemory, Ring
from jaxenvs.learn import Replay
from jaxenvs.learn.off_policy import replay_tags

# A store of more bytes has no more rows in a program than the training fills: memory of NumPy's counts when it is
# written, that of a program at once. A smaller one has all, so that its program is one for trainings of any length.
SMALL_STORE = 2**26


class Lending:
    """What a ReplayBuffer is for a compiled training: its ring, or the store of a program, from which it comes back."""

    _ring: Ring | None = None
    _lent: Replay | None = None

    @property
    def ring(self: Any) -> Ring:
        """What is stored. If a program has it, it comes back here."""
        self.take_back()
        ring: Ring = self._ring
        return ring

    @ring.setter
    def ring(self, ring: Ring) -> None:
        self._ring = ring

    def take_back(self: Any) -> None:
        """Bring what is stored back from a program, if one has it."""
        if self._lent is not None:
            like = map_leaves(lambda shape, space: np.zeros(0, space.dtype), self.obs_shape, self.observation_space)
            lent, self._lent = self._lent, None
            self._ring = take_back(lent, like, self._maybe_cast_dtype(self.action_space.dtype), self.buffer_size)

    def why_not_lent(self: Any) -> str | None:
        """Why a program cannot have what is stored; None if it can."""
        if self._storage != "ram":
            return f"its storage is {self._storage!r}"
        if self.alpha is not None:
            return "it has priorities"
        return None if self.handle_timeout_termination else "handle_timeout_termination is False"

    def lend(self: Any, observation: Any, num_steps: int) -> Replay:
        """What is stored as a program takes it, for `return_lent` to bring what that made of it.

        Args:
          observation: from which environments go on: where it is not what the newest row led to, an episode was left.
          num_steps: so many rows are written at most, until there is more to lend.
        """
        observation = self._as_stored("observation", observation, (self.n_envs,))
        if self._lent is not None:
            last = map_leaves(np.asarray, self._lent.last_observation)
            goes_on = all(np.array_equal(a, b) for a, b in zip(columns.leaves(last), columns.leaves(observation)))
            has_room = self._lent.capacity == self.buffer_size or self._lent.capacity > self._lent.size + num_steps
            if goes_on and has_room:
                lent: Replay = self._lent
                return lent
        self.ring.break_off(observation)
        lent = lend(self.ring, self.action_space, num_steps)
        self._ring = None
        return lent

    def return_lent(self, replay: Replay) -> None:
        """See `lend`. Nothing is copied until somebody looks."""
        self._ring, self._lent = None, replay


def lend(ring: Ring, action_space: spaces.Space[Any], num_steps: int) -> Replay:
    """The store of a program with what a ring in memory holds. The ring is empty-handed afterwards: forget it.

    Args:
      action_space: actions of a Discrete one are numbers there, and arrays of one number here.
      num_steps: see Lending.lend.
    """
    capacity, num_envs = _rows(ring, num_steps), ring.num_envs
    is_discrete = isinstance(action_space, spaces.Discrete)
    shape = () if is_discrete else ring.action.shape[2:]
    if ring.size == 0:
        observation = map_leaves(lambda leaf: jnp.zeros(leaf.shape, _dtype(leaf)), ring.last_observation)
        return Replay.create(capacity, observation, jnp.zeros((num_envs, *shape), _dtype(ring.action)))
    rows = (ring.num_ended + np.arange(len(ring.end_slot))) % len(ring.end_slot)  # the oldest first
    rows = rows[ring.alive_ends(rows)]
    slots = ring.end_slot[rows]
    num_ends = max(capacity * num_envs // 8, num_envs)
    # By doubling, because each number is a program of its own.
    while num_ends < min(len(rows) + len(rows) // 4, capacity * num_envs):
        num_ends *= 2
    tags = ring.tag[:capacity]
    tag, ended = tags.reshape(-1), tags.reshape(-1)[slots]
    tag[slots] = replay_tags.make_end(
        np.arange(len(rows), dtype=np.int32), replay_tags.terminated(ended), replay_tags.truncated(ended)
    )
    # As if all of the rest had ended just now, so that the first slot begins an episode.
    tags[(ring.position + np.arange(capacity - ring.size)) % capacity] = -1

    def ends(column: np.ndarray, fill: int = 0) -> jax.Array:
        filled = np.full((num_ends, *column.shape[1:]), fill, _dtype(column))
        filled[: len(rows)] = column[rows]
        return _put(filled)

    replay = Replay(
        observation=map_leaves(lambda leaf: _put(leaf[:capacity]), _take(ring, "observation")),
        action=_put(ring.action[:capacity].reshape(capacity, num_envs, *shape)),
        reward=_put(ring.reward[:capacity].astype(float)),
        tag=_put(tags),
        last_observation=map_leaves(_put, ring.last_observation),
        end_observation=map_leaves(ends, _take(ring, "end_observation")),
        end_slot=ends(ring.end_slot.astype(np.int32), -1),
        num_ended=_put(np.int32(len(rows))),
        position=_put(np.int32(ring.position)),
        size=_put(np.int32(ring.size)),
    )
    return replay


def _rows(ring: Ring, num_steps: int) -> int:
    """How many rows the store of a program has."""
    slot = [leaf[0, 0] for leaf in (*columns.leaves(ring.observation), ring.action, ring.reward, ring.tag)]
    num_bytes: int = ring.num_slots * sum(each.nbytes for each in slot)
    if num_bytes <= SMALL_STORE or ring.size != ring.position:  # which has gone round, or has forgotten rows
        return ring.capacity
    # By doubling, because each number is a program of its own.
    return min(ring.capacity, 1 << (ring.size + num_steps).bit_length())


def take_back(replay: Replay, like: Any, action_dtype: Any, capacity: int) -> Ring:
    """A ring in memory with what the store of a program holds, which is gone afterwards.

    Args:
      like: an observation of the ring's dtypes.
      action_dtype, capacity: those of the ring.
    """
    num_envs = replay.num_envs
    num_ended, num_ends = int(replay.num_ended), replay.end_slot.shape[0]

    def taken(leaf: jax.Array, dtype: Any) -> np.ndarray:
        array = np.array(leaf, dtype)
        leaf.delete()
        return array

    def taken_rows(leaf: jax.Array, dtype: Any) -> np.ndarray:
        if len(leaf) == capacity:
            return taken(leaf, dtype)
        array = np.zeros((capacity, *leaf.shape[1:]), dtype)
        array[: len(leaf)] = leaf
        leaf.delete()
        return array

    def observations(tree: Any, take: Any = taken) -> Any:
        return map_leaves(lambda leaf, other: take(leaf, other.dtype), tree, like)

    return Ring(
        observation=observations(replay.observation, taken_rows),
        action=taken_rows(replay.action, action_dtype).reshape(capacity, num_envs, -1),
        reward=taken_rows(replay.reward, np.float32),
        tag=taken_rows(replay.tag, np.int32),
        last_observation=observations(replay.last_observation),
        end_observation=observations(replay.end_observation),
        end_slot=np.maximum(taken(replay.end_slot, np.int64), 0),
        storage=InMemory(),
        position=int(replay.position),
        size=int(replay.size),
        # Both write the next end into the row that this number leaves over.
        num_ended=num_ended if num_ended < num_ends else num_ends + num_ended % num_ends,
    )


def _take(ring: Ring, name: str) -> Any:
    """An attribute of a ring, which loses it, so that its memory goes as soon as it was copied."""
    tree = getattr(ring, name)
    setattr(ring, name, None)
    return tree


def _put(array: Any) -> jax.Array:
    """An array of JAX's with memory of its own, which a program can be given.

    Not `jnp.array`, which holds one copy more for a while: as much memory again as the store takes.
    """
    put: jax.Array = jax.device_put(np.asarray(array, _dtype(array)), may_alias=False)
    return put


def _dtype(array: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(array.dtype)
