"""A replay store as a pytree of arrays: a ring of steps of all environments, for use inside compiled functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxenvs import arguments
from jaxenvs.environment import struct
from jaxenvs.learn.interfaces import Arrays
from jaxenvs.learn.off_policy.store import replay_tags
from jaxenvs.learn.off_policy.store.episode_index import Episodes
from jaxenvs.transformations import set_or_drop

# Each slot has a row for a last observation as long as all of these rows take at most this many bytes.
END_BYTES = 2**24
# Name of the metric from which priorities are computed: the critics' distances from their targets before an update.
TD_ERRORS = "td_errors"


@struct
class Transitions:
    """Batch that an off-policy update learns from. Every leaf has the leading axis (batch,).

    Attributes:
      observation, action: what the policy saw, and its action as the store holds it: actions of a Box lie in [-1, 1].
      reward: of one step; or of up to n steps, discounted and summed.
      next_observation: the observation after them, before any reset.
      discount: of the value of `next_observation`: gamma to the power of the number of steps, and 0 where the episode
        terminated. Where it was only truncated, the value counts.
      weight: the weight of each transition's error in the loss of the critics, as with priorities; None: all count
        alike. With weights, updates also return `td_errors`.
    """

    observation: Arrays
    action: jax.Array
    reward: jax.Array
    next_observation: Arrays
    discount: jax.Array
    weight: Any = None

    def weighted(self, losses: jax.Array) -> jax.Array:
        """Multiply losses of each transition, (..., batch), by their weights, if there are any."""
        return losses if self.weight is None else self.weight * losses

    def errors(self, errors: jax.Array) -> dict[str, jax.Array]:
        """Return the mean absolute temporal-difference errors, from (..., batch), by name, if there are weights."""
        if self.weight is None:
            return {}
        return {TD_ERRORS: jnp.abs(errors).reshape(-1, errors.shape[-1]).mean(0)}


@struct
class Replay:
    """Store of the last `capacity` steps of `num_envs` environments.

    A slot, given by its row and its environment, is one step of one environment. Observations are stored once: the
    observation after a slot is in the next row. The exceptions are the last observation of an episode, which has a row
    in a separate ring, and the observations after the newest row, which are in `last_observation`. If the ring of ends
    overwrites an observation that is still needed, all rows up to its row are forgotten.

    In a loop, the store is changed in place: an `add` costs the same whatever the capacity.

    With several devices, each has a store for its environments: outside of compiled functions all leaves have a leading
    axis of devices.

    Attributes:
      observation, action, reward: (capacity, num_envs, ...).
      tag: int32 (capacity, num_envs), the ages of slots and the ends of episodes: see `replay_tags`.
      last_observation: (num_envs, ...), the observations after the newest row.
      end_observation: (num_ends, ...), the last observations of episodes.
      end_slot: int32 (num_ends,), the slot that each belongs to, `row * num_envs + env_index`; -1 before the first.
      num_ended: int32, the episodes that ended so far.
      position, size: int32, the row written next, and how many rows there are to sample from.
      episodes: the index of whole episodes, from which alone hindsight samples; None: all steps are sampled.
    """

    observation: Arrays
    action: jax.Array
    reward: jax.Array
    tag: jax.Array
    last_observation: Arrays
    end_observation: Arrays
    end_slot: jax.Array
    num_ended: jax.Array
    position: jax.Array
    size: jax.Array
    episodes: Episodes | None = None

    def layout(self, sharded: Any, same: Any) -> Any:
        """Return `sharded`: there is a store on each device, with a leading axis of devices."""
        return sharded

    def of_one_device(self, mesh: Mesh | None = None) -> Replay:
        """Return the store of one device, without the leading axis of devices."""
        return jax.tree.map(lambda leaf: leaf[0], self)  # type: ignore[no-any-return]

    def of_all_devices(self) -> Replay:
        """Return the store with a leading axis of devices, of size 1 here."""
        return jax.tree.map(lambda leaf: leaf[None], self)  # type: ignore[no-any-return]

    @classmethod
    def create(
        cls, capacity: int, observation: Arrays, action: jax.Array, num_ends: int | None = None, whole: bool = False
    ) -> Self:
        """Create an empty store.

        Args:
          capacity: in steps of all environments.
          observation, action: of all environments, (num_envs, ...), of which only shapes and dtypes are used.
          num_ends: last observations kept, at least `num_envs`. If not given, one for each slot where these take at
            most 16 MiB, else as many as fit into 16 MiB, at least an eighth of the slots: with large observations and
            episodes shorter than eight steps on average, fewer than `capacity` steps may stay.
          whole: whether only whole episodes are sampled, as for hindsight. Then there is a row for each slot's end.

        Raises:
          ValueError: a number is too small, or there are more slots than an int32 counts.
        """
        num_envs = action.shape[0]
        capacity = arguments.positive_int("capacity", capacity, arguments.MOST // num_envs)
        if whole or num_ends is None:
            num_bytes = sum(leaf.size // num_envs * leaf.dtype.itemsize for leaf in jax.tree.leaves(observation))
            num_ends = num_ends_for(capacity, num_envs, num_bytes, whole)
        num_ends = arguments.integer("num_ends", num_ends, num_envs, replay_tags.MAX_ENDS)

        def empty(leaf: Any, *lead: int) -> jax.Array:
            return jnp.zeros((*lead, *leaf.shape[1:]), leaf.dtype)

        return cls(
            observation=jax.tree.map(lambda leaf: empty(leaf, capacity, num_envs), observation),
            action=empty(action, capacity, num_envs),
            reward=jnp.zeros((capacity, num_envs)),
            # Tags as if all episodes had just ended, so that the first slot begins an episode.
            tag=jnp.full((capacity, num_envs), -1, jnp.int32),
            last_observation=jax.tree.map(lambda leaf: empty(leaf, num_envs), observation),
            end_observation=jax.tree.map(lambda leaf: empty(leaf, num_ends), observation),
            end_slot=jnp.full(num_ends, -1, jnp.int32),
            num_ended=jnp.zeros((), jnp.int32),
            position=jnp.zeros((), jnp.int32),
            size=jnp.zeros((), jnp.int32),
            episodes=Episodes.create(capacity, num_envs) if whole else None,
        )

    @property
    def capacity(self) -> int:
        """Largest number of rows."""
        capacity: int = self.tag.shape[-2]
        return capacity

    @property
    def num_ends(self) -> int:
        """Largest number of last observations of episodes."""
        num_ends: int = self.end_slot.shape[-1]
        return num_ends

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        num_envs: int = self.tag.shape[-1]
        return num_envs

    @property
    def is_ready(self) -> jax.Array:
        """True if there is anything to sample, once steps were added."""
        return jnp.asarray(True) if self.episodes is None else self.episodes.count.sum() > 0

    def part(self, name: str) -> Self:
        """Return the same steps with one entry of the observations as the whole observation."""
        names = ("observation", "last_observation", "end_observation")
        return dataclasses.replace(self, **{each: getattr(self, each)[name] for each in names})

    def add(
        self,
        observation: Arrays,
        action: jax.Array,
        reward: jax.Array,
        terminated: jax.Array,
        truncated: jax.Array,
        next_observation: Arrays,
        final_observation: Arrays,
    ) -> Self:
        """Return the store with one more step of all environments. The first step of a store must begin episodes.

        Args:
          observation, action, reward, terminated, truncated: of the step, (num_envs, ...).
          next_observation: the observation on which the policy acts next: after a reset, where there was one.
          final_observation: the last observation of an episode, where one ended.
        """
        capacity, num_ends = self.capacity, self.num_ends
        done = terminated | truncated
        end = (self.num_ended + jnp.cumsum(done, dtype=jnp.int32) - 1) % num_ends

        before = jax.lax.dynamic_index_in_dim(self.tag, (self.position - 1) % capacity, keepdims=False)
        lost_slot = _take(self.end_slot, end)
        lost_tag = _take(self.tag.reshape(-1), jnp.maximum(lost_slot, 0))
        is_needed = done & (lost_slot >= 0) & replay_tags.is_end(lost_tag) & (replay_tags.end_row(lost_tag) == end)
        rows_after = (self.position - 1 - lost_slot // self.num_envs) % capacity + 1
        size = jnp.minimum(self.size + 1, jnp.min(jnp.where(is_needed, rows_after, capacity)))

        def write(store: jax.Array, row: jax.Array) -> jax.Array:
            written: jax.Array = jax.lax.dynamic_update_index_in_dim(store, row.astype(store.dtype), self.position, 0)
            return written

        # Environments whose episode continues write past the end, which is dropped.
        end_or_none = jnp.where(done, end, num_ends)

        def write_ends(store: jax.Array, rows: jax.Array) -> jax.Array:
            return set_or_drop(store, end_or_none, rows)

        slot = self.position * self.num_envs + jnp.arange(self.num_envs, dtype=jnp.int32)
        new_tag = jnp.where(done, replay_tags.make_end(end, terminated, truncated), replay_tags.next_age(before))
        # Make the written values depend on the values read from the same arrays: otherwise XLA may read last, from
        # copies of whole arrays that it makes before.
        slot, new_tag = (jnp.where(size > 0, new, 0) for new in (slot, new_tag))
        return dataclasses.replace(
            self,
            observation=jax.tree.map(write, self.observation, observation),
            action=write(self.action, action),
            reward=write(self.reward, reward),
            tag=write(self.tag, new_tag),
            last_observation=jax.tree.map(
                lambda old, new: new.astype(old.dtype), self.last_observation, next_observation
            ),
            end_observation=jax.tree.map(write_ends, self.end_observation, final_observation),
            end_slot=write_ends(self.end_slot, slot),
            num_ended=self.num_ended + done.sum(dtype=jnp.int32),
            position=(self.position + 1) % capacity,
            size=size,
            episodes=None if self.episodes is None else self.episodes.add(self.position, done),
        )

    def draw(self, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sample slots, uniformly from all that are stored.

        Args:
          bits: uint32, random. They are an argument, so that the bits of many batches can be drawn at once.

        Returns:
          Rows, and indices of environments, int32, in the shape of `bits`.
        """
        # A remainder favors the first slots by one part in (2^32 / slots): with a million, by 0.02 %.
        slot = (bits % jnp.maximum(self.size * self.num_envs, 1).astype(jnp.uint32)).astype(jnp.int32)
        row = (self.position - self.size + slot // self.num_envs) % self.capacity
        return row, slot % self.num_envs

    def transitions(
        self,
        rows: jax.Array,
        env_indices: jax.Array,
        gamma: Any,
        n_steps: int = 1,
        reward_of: Callable[[jax.Array], jax.Array] = lambda reward: reward,
    ) -> Transitions:
        """Return the transitions that begin in these slots.

        Args:
          rows, env_indices: (batch,), the rows and environments of stored slots.
          gamma: the discount of one step.
          n_steps: how many steps are combined, or fewer up to the end of the episode or the newest row: as in SB3's
            NStepReplayBuffer.
          reward_of: maps each reward to the reward to learn from, as a normalizer does.
        """

        def at_once(rows: jax.Array, env_indices: jax.Array) -> Transitions:
            return self._transitions(rows, env_indices, gamma, n_steps, reward_of)

        def one_by_one(rows: jax.Array, env_indices: jax.Array) -> Transitions:
            def one(slot: tuple[jax.Array, jax.Array]) -> Transitions:
                transition: Transitions = jax.tree.map(lambda leaf: leaf[0], at_once(slot[0][None], slot[1][None]))
                return transition

            transitions: Transitions = jax.lax.map(one, (rows, env_indices))
            return transitions

        # XLA's CPU backend treats a gather from a large store as expensive, and wakes a second thread for it, which
        # takes longer than a whole small update. A loop over slots is compiled into one kernel.
        chosen: Transitions = jax.lax.platform_dependent(rows, env_indices, cpu=one_by_one, default=at_once)
        return chosen

    def _transitions(
        self,
        rows: jax.Array,
        env_indices: jax.Array,
        gamma: Any,
        n_steps: int,
        reward_of: Callable[[jax.Array], jax.Array],
    ) -> Transitions:
        ahead = (self.position - 1 - rows) % self.capacity  # rows after it
        tag, last, discount = self._take(self.tag, rows, env_indices), rows, gamma
        reward = reward_of(self._take(self.reward, rows, env_indices))
        if n_steps > 1:
            step = jnp.arange(n_steps, dtype=jnp.int32)
            window = (rows[:, None] + step) % self.capacity
            tags = self._take(self.tag, window, env_indices[:, None])
            is_last = replay_tags.is_done(tags) | (step >= ahead[:, None]) | (step == n_steps - 1)
            more = jnp.argmax(is_last, axis=1).astype(jnp.int32)  # steps after the first
            discounts = gamma ** step.astype(reward.dtype) * (step <= more[:, None])
            reward = (reward_of(self._take(self.reward, window, env_indices[:, None])) * discounts).sum(1)
            tag = jnp.take_along_axis(tags, more[:, None], axis=1)[:, 0]
            last, ahead = (rows + more) % self.capacity, ahead - more
            discount = gamma ** (more + 1).astype(reward.dtype)

        def after(store: jax.Array, newest: jax.Array, ends: jax.Array) -> jax.Array:
            def choose(mask: jax.Array, one: jax.Array, other: jax.Array) -> jax.Array:
                return jnp.where(mask.reshape(-1, *(1,) * (one.ndim - 1)), one, other)

            following = self._take(store, (last + 1) % self.capacity, env_indices)
            following = choose(ahead == 0, _take(newest, env_indices), following)
            return choose(replay_tags.is_end(tag), _take(ends, replay_tags.end_row(tag)), following)

        return Transitions(
            observation=jax.tree.map(lambda store: self._take(store, rows, env_indices), self.observation),
            action=self._take(self.action, rows, env_indices),
            reward=reward,
            next_observation=jax.tree.map(after, self.observation, self.last_observation, self.end_observation),
            discount=jnp.where(replay_tags.terminated(tag), 0, jnp.asarray(discount, reward.dtype)),
        )

    def _take(self, store: jax.Array, rows: jax.Array, env_indices: jax.Array) -> jax.Array:
        return _take(store.reshape(-1, *store.shape[2:]), rows * self.num_envs + env_indices)


def num_ends_for(capacity: int, num_envs: int, num_bytes: int, whole: bool) -> int:
    """Return the default of `num_ends`. `num_bytes` is the size of one observation."""
    slots = capacity * num_envs
    if whole:
        return slots
    return min(max(slots // 8, num_envs, min(slots, END_BYTES // max(num_bytes, 1))), replay_tags.MAX_ENDS)


def _take(array: jax.Array, indices: jax.Array) -> jax.Array:
    """Take rows of an array; indices out of range are clipped, and their rows must not be used."""
    return array.at[indices].get(mode="clip")
