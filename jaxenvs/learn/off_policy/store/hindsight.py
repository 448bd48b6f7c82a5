"""Hindsight: an index of the whole episodes in a store, and transitions with goals that were achieved later.

Source: Andrychowicz et al. (2017), "Hindsight Experience Replay"; transitions and goals are sampled as in SB3's
HerReplayBuffer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp

from jaxenvs import arguments
from jaxenvs.environment import static, struct
from jaxenvs.transformations import set_or_drop

if TYPE_CHECKING:
    from jaxenvs.learn.off_policy.store.replay import Replay, Transitions

STRATEGIES = ("future", "final", "episode")
GOALS = ("achieved_goal", "desired_goal")
# Returns the reward for an achieved goal, a desired goal and an info, as the method of an environment with goals.
ComputeReward = Callable[[Any, Any, Any], jax.Array]


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

    extent: Any
    begin: Any
    first: Any
    count: Any
    oldest: Any

    @classmethod
    def create(cls, capacity: int, num_envs: int) -> Self:
        """Return the index of an empty ring."""
        # Separate arrays, because the caller may donate them.
        per_env = (jnp.zeros(num_envs, jnp.int32) for _ in range(4))
        return cls(jnp.zeros((capacity, num_envs), jnp.int32), *per_env)

    @property
    def capacity(self) -> int:
        """Number of rows."""
        capacity: int = self.extent.shape[0]
        return capacity

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
          strategy: one of STRATEGIES.
          rows, env_indices: the slots, (batch,). They belong to whole episodes.
          bits: uint32 (batch,), random.
        """
        flat = self.extent.reshape(-1)

        def at(rows: jax.Array) -> Any:
            return flat.at[rows * self.extent.shape[1] + env_indices].get(mode="clip")

        age = jnp.maximum(at(rows), 0)
        begin = (rows - age) % self.capacity
        length = -at(begin)
        least = {"future": age, "final": length - 1, "episode": jnp.zeros_like(age)}[strategy]
        ahead = (bits % jnp.maximum(length - least, 1).astype(jnp.uint32)).astype(jnp.int32)
        row: jax.Array = (begin + least + ahead) % self.capacity
        return row


@struct
class Hindsight:
    """Hindsight experience replay: the share of each batch that gets other goals, and which goals.

    Use it for environments with goals and sparse rewards.

    Attributes:
      n_sampled_goal: transitions with other goals for each unchanged one.
      goal_selection_strategy: the goal is one that was achieved in a step of the same episode: "future": this step or a
        later one, "final": the last step, "episode": any step.
    """

    NAMES: ClassVar[tuple[str, ...]] = ("observation", *GOALS)

    n_sampled_goal: int = static(default=4)
    goal_selection_strategy: str = static(default="future")

    def __check_init__(self) -> None:
        arguments.non_negative_int("n_sampled_goal", self.n_sampled_goal)
        arguments.one_of("goal_selection_strategy", self.goal_selection_strategy, STRATEGIES)

    def num_relabelled(self, batch_size: int) -> int:
        """Return how many transitions of a batch get other goals."""
        return int((1 - 1 / (self.n_sampled_goal + 1)) * batch_size)

    def transitions(self, replay: Replay, bits: jax.Array, gamma: Any, compute_reward: ComputeReward) -> Transitions:
        """Sample a batch from whole episodes, in which the first transitions have other goals, with their rewards.

        Args:
          bits: uint32 (2, batch), random: for the slots, and for the goals.
          compute_reward: of many goals at once, and an empty info.
        """
        episodes = replay.episodes
        assert episodes is not None
        rows, env_indices = episodes.draw(bits[0])
        batch = replay.transitions(rows, env_indices, gamma)
        num = self.num_relabelled(bits.shape[1])
        if num == 0:
            return batch
        goal_rows = episodes.goal_rows(self.goal_selection_strategy, rows[:num], env_indices[:num], bits[1, :num])
        goal: Any = replay.part("achieved_goal").transitions(goal_rows, env_indices[:num], gamma).next_observation
        after: Any = batch.next_observation

        def with_goal(observation: Any) -> Any:
            desired = observation["desired_goal"]
            return {**observation, "desired_goal": desired.at[:num].set(goal.astype(desired.dtype))}

        reward = compute_reward(after["achieved_goal"][:num], goal, {})
        return dataclasses.replace(
            batch,
            observation=with_goal(batch.observation),
            next_observation=with_goal(after),
            reward=batch.reward.at[:num].set(jnp.asarray(reward, batch.reward.dtype)),
        )


def require_goals(env: Any) -> ComputeReward:
    """Return the `compute_reward` of an environment."""
    compute_reward: ComputeReward | None = None
    with contextlib.suppress(AttributeError):
        compute_reward = env.parameter("compute_reward")
    if not callable(compute_reward):
        raise TypeError(
            "hindsight needs an environment with compute_reward(achieved_goal, desired_goal, info), but "
            f"{type(env.unwrapped).__name__} has none."
        )
    return compute_reward


def require_goal_space(space: Any) -> None:
    """Raise unless observations of the space have goals."""
    names = sorted(getattr(space, "spaces", None) or ())
    if not {*Hindsight.NAMES} <= {*names}:
        raise TypeError(
            f"hindsight needs a Dict observation space with {', '.join(Hindsight.NAMES)}, got a "
            f"{type(space).__name__}{' with ' + ', '.join(map(str, names)) if names else ''}."
        )
