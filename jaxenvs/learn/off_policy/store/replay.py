"""A replay store as a pytree of arrays: a ring of steps of all environments, for use inside compiled functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxenvs import arguments
from jaxenvs.environment import struct
from jaxenvs.jax_names import partition_spec
from jaxenvs.learn.interfaces import Arrays, Real
from jaxenvs.learn.off_policy.store.episode_index import Episodes
from jaxenvs.vector import join_axes

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
    weight: jax.Array | None = None

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
    """Store of the last `capacity` steps of `num_envs` environments, with the arrays of SB3's ReplayBuffer.

    A slot, given by its row and its environment, is one step of one environment. In a loop, the store is changed in
    place: an `add` costs the same whatever the capacity.

    With several devices, each has the rows of its environments.

    Attributes:
      observation, next_observation, action, reward: (capacity, num_envs, ...); the next observation is the one before
        any reset.
      terminated, truncated: bools (capacity, num_envs), whether and how an episode ended with the step.
      position, size: int32, the row written next, and how many rows there are to sample from.
      episodes: the index of whole episodes, from which alone hindsight samples; None: all steps are sampled.
    """

    observation: Arrays
    next_observation: Arrays
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    position: jax.Array
    size: jax.Array
    episodes: Episodes | None = None

    def layout(self, sharded: Any, same: Any) -> Self:
        """Return a prefix of this pytree: environments, the second axis of rows, are divided over devices."""
        rows: Any = partition_spec(None, *sharded)
        episodes = None if self.episodes is None else self.episodes.layout(sharded, rows)
        return type(self)(*(rows,) * 6, position=same, size=same, episodes=episodes)

    @classmethod
    def create(cls, capacity: int, observation: Arrays, action: jax.Array, whole: bool = False) -> Self:
        """Create an empty store.

        Args:
          capacity: in steps of all environments.
          observation, action: of all environments, (num_envs, ...), of which only shapes and dtypes are used.
          whole: whether only whole episodes are sampled, as for hindsight.

        Raises:
          ValueError: the capacity is too small, or there are more slots than an int32 counts.
        """
        num_envs = action.shape[0]
        capacity = arguments.positive_int("capacity", capacity, arguments.MOST // num_envs)

        def empty(leaf: jax.Array) -> jax.Array:
            return jnp.zeros((capacity, num_envs, *leaf.shape[1:]), leaf.dtype)

        return cls(
            # Separate arrays, because the caller may donate them.
            observation=jax.tree.map(empty, observation),
            next_observation=jax.tree.map(empty, observation),
            action=empty(action),
            reward=jnp.zeros((capacity, num_envs)),
            terminated=jnp.zeros((capacity, num_envs), bool),
            truncated=jnp.zeros((capacity, num_envs), bool),
            position=jnp.zeros((), jnp.int32),
            size=jnp.zeros((), jnp.int32),
            episodes=Episodes.create(capacity, num_envs) if whole else None,
        )

    @property
    def capacity(self) -> int:
        """Largest number of rows."""
        return self.reward.shape[-2]

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return self.reward.shape[-1]

    @property
    def is_ready(self) -> jax.Array:
        """True if there is anything to sample, once steps were added."""
        return jnp.asarray(True) if self.episodes is None else self.episodes.count.sum() > 0

    def part(self, name: str) -> Self:
        """Return the same steps with one entry of the observations as the whole observation."""
        names = ("observation", "next_observation")
        return dataclasses.replace(self, **{each: getattr(self, each)[name] for each in names})

    def add(
        self,
        observation: Arrays,
        action: jax.Array,
        reward: jax.Array,
        terminated: jax.Array,
        truncated: jax.Array,
        next_observation: Arrays,
    ) -> Self:
        """Return the store with one more step of all environments. For hindsight, its first step must begin episodes.

        Args:
          observation, action, reward, terminated, truncated: of the step, (num_envs, ...).
          next_observation: the observation after the step, before any reset: a VectorTimeStep's `final_observation`.
        """

        def write(store: jax.Array, row: jax.Array) -> jax.Array:
            written: jax.Array = jax.lax.dynamic_update_index_in_dim(store, row.astype(store.dtype), self.position, 0)
            return written

        return dataclasses.replace(
            self,
            observation=jax.tree.map(write, self.observation, observation),
            next_observation=jax.tree.map(write, self.next_observation, next_observation),
            action=write(self.action, action),
            reward=write(self.reward, reward),
            terminated=write(self.terminated, terminated),
            truncated=write(self.truncated, truncated),
            position=(self.position + 1) % self.capacity,
            size=jnp.minimum(self.size + 1, self.capacity),
            episodes=None if self.episodes is None else self.episodes.add(self.position, terminated | truncated),
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
        gamma: Real,
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
        gamma: Real,
        n_steps: int,
        reward_of: Callable[[jax.Array], jax.Array],
    ) -> Transitions:
        last, discount = rows, gamma
        reward = reward_of(self._take(self.reward, rows, env_indices))
        if n_steps > 1:
            step = jnp.arange(n_steps, dtype=jnp.int32)
            window = (rows[:, None] + step) % self.capacity
            ahead = (self.position - 1 - rows) % self.capacity  # rows after it
            ends = (self._take(flags, window, env_indices[:, None]) for flags in (self.terminated, self.truncated))
            is_last = jnp.logical_or(*ends) | (step >= ahead[:, None]) | (step == n_steps - 1)
            more = jnp.argmax(is_last, axis=1).astype(jnp.int32)  # steps after the first
            discounts = gamma ** step.astype(reward.dtype) * (step <= more[:, None])
            reward = (reward_of(self._take(self.reward, window, env_indices[:, None])) * discounts).sum(1)
            last = (rows + more) % self.capacity
            discount = gamma ** (more + 1).astype(reward.dtype)
        terminated = self._take(self.terminated, last, env_indices)
        return Transitions(
            observation=jax.tree.map(lambda store: self._take(store, rows, env_indices), self.observation),
            action=self._take(self.action, rows, env_indices),
            reward=reward,
            next_observation=jax.tree.map(lambda store: self._take(store, last, env_indices), self.next_observation),
            discount=jnp.where(terminated, 0, jnp.asarray(discount, reward.dtype)),
        )

    def _take(self, store: jax.Array, rows: jax.Array, env_indices: jax.Array) -> jax.Array:
        # Indices out of range are clipped, which takes no check.
        taken: jax.Array = join_axes(store).at[rows * self.num_envs + env_indices].get(mode="clip")
        return taken
