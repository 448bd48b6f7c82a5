"""Base class of environments with goals."""

from __future__ import annotations

from typing import Any, TypeVar

import gymnasium
import jax

from jaxenvs.environment import Environment

State = TypeVar("State")


class GoalEnvironment(Environment[State]):
    """Base class of environments that observe a goal and can compute rewards of other goals, as in Gymnasium-Robotics.

    The observation is a dict of `observation`, `achieved_goal` and `desired_goal`, the last two from the same space.
    The reward of a step is `compute_reward` of its achieved goal, the desired goal, and its info. Hindsight works with
    any environment that has such observations and such a method, without this base class.
    """

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> jax.Array:
        """Return the reward for an achieved goal where another goal was desired. Can be traced.

        Args:
          achieved_goal, desired_goal: with any leading axes.
          info: of the step, which not every reward needs; a list of dicts where SB3 asks for many.

        Returns:
          float, in the shape of the leading axes.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define compute_reward.")


def goal_space(observation: gymnasium.Space[object], goal: gymnasium.Space[object]) -> gymnasium.spaces.Dict:
    """Return the space of the observations, given the spaces of `observation` and of a goal."""
    return gymnasium.spaces.Dict({"observation": observation, "achieved_goal": goal, "desired_goal": goal})
