"""Hindsight: transitions with goals that were achieved later in the same episode.

Source: Andrychowicz et al. (2017), "Hindsight Experience Replay"; transitions and goals are sampled as in SB3's
HerReplayBuffer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxenvs import arguments
from jaxenvs.environment import static, struct
from jaxenvs.learn.interfaces import Real
from jaxenvs.learn.off_policy.store.replay import Replay, Transitions

STRATEGIES = ("future", "final", "episode")
GOALS = ("achieved_goal", "desired_goal")
# Returns the reward for an achieved goal, a desired goal and an info, as the method of an environment with goals.
ComputeReward = Callable[[jax.Array, jax.Array, Mapping[str, object]], jax.Array]


@struct
class Hindsight:
    """Hindsight experience replay: the share of each batch that gets other goals, and which goals.

    Use it for environments with goals and sparse rewards. Rewards for other goals are those of the given environment,
    also where a RandomizedParameters draws other parameters.

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

    def transitions(self, replay: Replay, bits: jax.Array, gamma: Real, compute_reward: ComputeReward) -> Transitions:
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


def require_goal_space(space: object) -> None:
    """Raise unless observations of the space have goals."""
    names = sorted(getattr(space, "spaces", None) or ())
    if not {*Hindsight.NAMES} <= {*names}:
        raise TypeError(
            f"hindsight needs a Dict observation space with {', '.join(Hindsight.NAMES)}, got a "
            f"{type(space).__name__}{' with ' + ', '.join(map(str, names)) if names else ''}."
        )
