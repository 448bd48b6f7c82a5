"""What environments with goals have in common."""

from __future__ import annotations

from typing import Any, TypeVar

import gymnasium
import jax

from jaxenvs.environment import Environment

State = TypeVar("State")


class GoalEnvironment(Environment[State]):
    """An environment whose observation tells of a goal, and which rewards any other one too, as Gymnasium-Robotics has.

    The observation is a dict of `observation`, `achieved_goal` and `desired_goal`, the last two of one kind. The reward
    of a step is `compute_reward` of what it achieved, of the goal, and of its info. Whatever else has such observations
    and such a method is as good: hindsight asks for no more.
    """

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> jax.Array:
        """The reward of having achieved one thing where another was desired. Can be traced.

        Args:
          achieved_goal, desired_goal: with any leading axes.
          info: of the step, which not every reward needs; a list of dicts where SB3 asks for many.

        Returns:
          float, in the shape of the leading axes.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define compute_reward.")


def goal_space(observation: gymnasium.Space[Any], goal: gymnasium.Space[Any]) -> gymnasium.spaces.Dict:
    """The space of the observations, from that of `observation` and that of a goal."""
    return gymnasium.spaces.Dict({"observation": observation, "achieved_goal": goal, "desired_goal": goal})
