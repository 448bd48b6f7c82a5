"""MountainCarContinuous: rock a weak car out of a valley, with a cost of the throttle."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import TimeStep, environment
from jaxenvs.envs.classic_control.mountain_car import MountainCar, MountainCarState


@environment
class MountainCarContinuous(MountainCar):
    """MountainCar with a throttle, float32 (1,) from -1 to 1, as Gymnasium's MountainCarContinuous-v0.

    Observation: float32 (2,): position, velocity. Reward: 100 for the goal, minus 0.1 times the squared throttle at
    each step, before the throttle is clipped.
    Source: the equations of MountainCar with a stronger engine and a nearer goal, as in Gymnasium.
    """

    force: float = 0.0015
    goal_position: float = 0.45

    @property
    def action_space(self) -> gymnasium.Space[object]:
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(self, state: MountainCarState, action: jax.Array) -> tuple[MountainCarState, TimeStep]:
        throttle = jnp.asarray(action[0], float)
        state = self._roll(state, jnp.clip(throttle, -1.0, 1.0) * self.force)
        terminated = self._at_goal(state)
        reward = jnp.where(terminated, 100.0, 0.0) - 0.1 * throttle**2
        return state, TimeStep.create(self._observe(state), reward, terminated)
