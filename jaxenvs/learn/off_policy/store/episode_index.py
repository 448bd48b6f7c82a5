"""Index of the whole episodes in a store, from which hindsight samples transitions and goals."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxenvs.environment import struct
from jaxenvs.transformations import set_or_drop


@struct
class Episodes:
    """Index of the whole episodes of each environment in a ring of rows. They follow each other without a gap.

    Attributes:
      extent: int32 (capacity, num_envs): for the first slot of an episode that is stored whole, minus the episode's
        length; for any other slot, the number of rows since its episode began.
      begin: int32 (num_envs,), the row in which the running episode began.
      first: int32 (num_envs,), the row in which the oldest whole episode begins, if there is one.
      count: int32 (num_envs,), how many slots the whole episodes have together.
      oldest: int32 (num_envs,), the length of the oldest whole episode, if there is one. It is read from `extent` after
        the write; a read before it would make XLA write into a copy of `extent`.
    """

    extent: jax.Array
    begin: jax.Array
    first: jax.Array
    count: jax.Array
    oldest: jax.Array

    @classmethod
    def create(cls, capacity: int, num_envs: int) -> Self:
        """Return the index of an empty ring."""
        # Separate arrays, because the caller may donate them.
        per_env = (jnp.zeros(num_envs, jnp.int32) for _ in range(4))
        return cls(jnp.zeros((capacity, num_envs), jnp.int32), *per_env)

    def layout(self, sharded: Any, rows: Any) -> Self:
        """Return a prefix of this pytree: `rows` for the array of slots, `sharded` for one number per environment."""
        return type(self)(rows, *(sharded,) * 4)

    @property
    def capacity(self) -> int:
        """Number of rows."""
        return self.extent.shape[0]

    def add(self, row: jax.Array, done: jax.Array) -> Self:
        """Return the index after a row was written, which may have replaced an older row.

        Args:
          done: (num_envs,), where an episode ended with it.
        """
        capacity = self.capacity
        # Once its first slot is overwritten, the whole oldest episode is lost.
        lost = jnp.where((self.count > 0) & (self.first == row), self.oldest, 0)
        count = self.count - lost
        # Of an episode longer than the ring, the part that is left counts, as in SB3.
        age, length = (row - self.begin) % capacity, (row + 1 - self.begin) % capacity
        whole = done & (length > 0)
        first = jnp.where(whole & (count == 0), self.begin, (self.first + lost) % capacity)
        # One write for both, or XLA would write into a copy here too.
        num_envs = done.shape[0]
        env_indices, nowhere = jnp.arange(num_envs, dtype=jnp.int32), capacity * num_envs
        slot = jnp.where(whole & (age == 0), nowhere, row * num_envs + env_indices)
        begun = jnp.where(whole, self.begin * num_envs + env_indices, nowhere)
        slots, values = jnp.concatenate([slot, begun]), jnp.concatenate([age, -length])
        flat = set_or_drop(self.extent.reshape(-1), slots, values)
        return dataclasses.replace(
            self,
            extent=flat.reshape(self.extent.shape),
            begin=jnp.where(done, (row + 1) % capacity, self.begin),
            first=first,
            count=count + jnp.where(whole, length, 0),
            oldest=-flat.at[first * num_envs + env_indices].get(mode="clip"),
        )

    def draw(self, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sample slots as Replay.draw does, uniformly from whole episodes; meaningless if there are none."""
        ends = jnp.cumsum(self.count)
        number = (bits % jnp.maximum(ends[-1], 1).astype(jnp.uint32)).astype(jnp.int32)
        env_index = (number[:, None] >= ends).sum(1, dtype=jnp.int32)
        row = (self.first[env_index] + number - (ends - self.count)[env_index]) % self.capacity
        return row, env_index

    def goal_rows(self, strategy: str, rows: jax.Array, env_indices: jax.Array, bits: jax.Array) -> jax.Array:
        """Return the rows of steps in the same episodes from which achieved goals are taken.

        Args:
          strategy: as `goal_selection_strategy` of Hindsight.
          rows, env_indices: the slots, (batch,). They belong to whole episodes.
          bits: uint32 (batch,), random.
        """
        flat = self.extent.reshape(-1)

        def at(rows: jax.Array) -> jax.Array:
            return flat.at[rows * self.extent.shape[1] + env_indices].get(mode="clip")

        age = jnp.maximum(at(rows), 0)
        begin = (rows - age) % self.capacity
        length = -at(begin)
        least = {"future": age, "final": length - 1, "episode": jnp.zeros_like(age)}[strategy]
        ahead = (bits % jnp.maximum(length - least, 1).astype(jnp.uint32)).astype(jnp.int32)
        return (begin + least + ahead) % self.capacity
