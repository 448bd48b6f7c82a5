"""ArmReach: bring the tip of an arm in the plane to a point."""

from __future__ import annotations

import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxenvs.drawing import BLACK, Canvas
from jaxenvs.environment import TimeStep, environment, struct
from jaxenvs.envs.goals.goal_environment import GoalEnvironment, goal_space


@struct
class ArmReachState:
    """State of an ArmReach: angles of the two joints [rad, from -pi to pi], and the goal of the episode, (2,) [m].

    `theta_1` is the angle of the first link above the x axis; `theta_2` is 0 where the second link continues the first.
    """

    theta_1: jax.Array
    theta_2: jax.Array
    goal: jax.Array


@environment
class ArmReach(GoalEnvironment[ArmReachState]):
    """Reach a point with an arm of two links in the plane, with a sparse reward: FetchReach without physics.

    Action: float32 (2,) from -1 to 1, how far each joint turns in a step, in units of `max_turn`. Observation:
    `observation`, float32 (4,): cos and sin of both angles; `achieved_goal` and `desired_goal`, float32 (2,): positions
    of the tip and of the goal [m]. Reward: 0 if the tip is within `distance_threshold` of the goal, else -1. Never
    terminates; `info["is_success"]` reports whether the goal is reached. Pose and goal are random: angles uniform, the
    goal uniform in what the tip can reach.
    Source: the task of Plappert et al. (2018), "Multi-Goal Reinforcement Learning", with the kinematics of two links.

    Attributes:
      link_length_1, link_length_2: m.
      max_turn: rad per step.
      distance_threshold: m.
    """

    link_length_1: float = 0.5
    link_length_2: float = 0.5
    max_turn: float = 0.2
    distance_threshold: float = 0.05

    render_size = 400, 400

    @property
    def observation_space(self) -> gymnasium.spaces.Dict:
        joints = gymnasium.spaces.Box(-1, 1, shape=(4,), dtype=np.float32)
        reach = np.float32(self.link_length_1 + self.link_length_2) * np.ones(2, np.float32)
        return goal_space(joints, gymnasium.spaces.Box(-reach, reach, dtype=np.float32))

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(-1, 1, shape=(2,), dtype=np.float32)

    def reset(self, key: jax.Array) -> tuple[ArmReachState, TimeStep]:
        theta_1, theta_2, direction, area = jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        # Uniform in the area between the two circles that the tip cannot leave.
        least, most = (self.link_length_1 - self.link_length_2) ** 2, (self.link_length_1 + self.link_length_2) ** 2
        radius = jnp.sqrt(least + (area + 1) / 2 * (most - least))
        goal = radius * jnp.stack([jnp.cos(math.pi * direction), jnp.sin(math.pi * direction)])
        state = ArmReachState(theta_1=math.pi * theta_1, theta_2=math.pi * theta_2, goal=goal)
        return state, self._timestep(state, 0.0)

    def step(self, state: ArmReachState, action: jax.Array) -> tuple[ArmReachState, TimeStep]:
        turn = self.max_turn * jnp.clip(jnp.asarray(action, float), -1, 1)
        state = ArmReachState(_wrap(state.theta_1 + turn[0]), _wrap(state.theta_2 + turn[1]), state.goal)
        return state, self._timestep(state)

    def compute_reward(self, achieved_goal: ArrayLike, desired_goal: ArrayLike, info: object) -> jax.Array:
        """Return 0 where the tip is within `distance_threshold` of the goal, else -1."""
        distance = jnp.linalg.norm(jnp.asarray(achieved_goal) - jnp.asarray(desired_goal), axis=-1)
        reward: jax.Array = -(distance > self.distance_threshold).astype(float)
        return reward

    def _timestep(self, state: ArmReachState, reward: float | None = None) -> TimeStep:
        tip = jnp.stack(self._tip(state)).astype(jnp.float32)
        goal = state.goal.astype(jnp.float32)
        angles = (jnp.cos(state.theta_1), jnp.sin(state.theta_1), jnp.cos(state.theta_2), jnp.sin(state.theta_2))
        joints = jnp.stack(angles).astype(jnp.float32)
        observation = {"observation": joints, "achieved_goal": tip, "desired_goal": goal}
        earned = self.compute_reward(tip, goal, {})
        return TimeStep.create(observation, earned if reward is None else reward, info={"is_success": earned == 0})

    def _elbow(self, state: ArmReachState) -> tuple[jax.Array, jax.Array]:
        return self.link_length_1 * jnp.cos(state.theta_1), self.link_length_1 * jnp.sin(state.theta_1)

    def _tip(self, state: ArmReachState) -> tuple[jax.Array, jax.Array]:
        x, y = self._elbow(state)
        angle = state.theta_1 + state.theta_2
        return x + self.link_length_2 * jnp.cos(angle), y + self.link_length_2 * jnp.sin(angle)

    def draw(self, state: ArmReachState, height: int, width: int) -> jax.Array:
        reach = 1.1 * (self.link_length_1 + self.link_length_2)
        canvas = Canvas.blank(height, width, -reach, reach, -reach, reach)
        canvas = canvas.circle(state.goal, self.distance_threshold, (204, 77, 77))
        elbow, tip = self._elbow(state), self._tip(state)
        canvas = canvas.rod((0.0, 0.0), elbow, (129, 132, 203), width=0.06 * reach)
        canvas = canvas.rod(elbow, tip, (129, 132, 203), width=0.06 * reach)
        for joint in ((0.0, 0.0), elbow, tip):
            canvas = canvas.circle(joint, 0.02 * reach, BLACK)
        return canvas.picture()


def _wrap(angle: jax.Array) -> jax.Array:
    """Return the same angle from -pi to pi."""
    return angle - 2 * math.pi * jnp.floor(angle / (2 * math.pi) + 0.5)
