"""MountainCar: rock a weak car out of a valley."""

from __future__ import annotations

import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.drawing import BLACK, Canvas, Number, background
from jaxenvs.environment import Environment, TimeStep, environment, struct


@struct
class MountainCarState:
    """State of a MountainCar: position and velocity [1/step] of the car along the horizontal axis."""

    position: jax.Array
    velocity: jax.Array


@environment
class MountainCar(Environment[MountainCarState]):
    """Drive a car too weak for the hill to its top: push left (0), not at all (1) or right (2), as MountainCar-v0.

    Observation: float32 (2,): position, velocity. Reward: -1 per step, including the last one.
    Source: Moore (1990), "Efficient memory-based learning for robot control"; the equations are from Sutton & Barto,
    "Reinforcement Learning: An Introduction", example 10.1.

    Attributes:
      force: 1/step^2, the acceleration at full throttle.
      gravity: 1/step^2.
      min_position: a wall, which stops the car.
      max_position: the end of the track.
      max_speed: 1/step.
      goal_position: the top of the hill.
      goal_velocity: 1/step, the least at which the goal counts as reached.
    """

    force: float = 0.001
    gravity: float = 0.0025
    min_position: float = -1.2
    max_position: float = 0.6
    max_speed: float = 0.07
    goal_position: float = 0.5
    goal_velocity: float = 0.0

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        low = np.array([self.min_position, -self.max_speed], np.float32)
        high = np.array([self.max_position, self.max_speed], np.float32)
        return gymnasium.spaces.Box(low, high, dtype=np.float32)

    @property
    def action_space(self) -> gymnasium.Space[object]:
        return gymnasium.spaces.Discrete(3)

    def reset(self, key: jax.Array) -> tuple[MountainCarState, TimeStep]:
        position = jax.random.uniform(key, (), minval=-0.6, maxval=-0.4)
        state = MountainCarState(position=position, velocity=jnp.zeros_like(position))
        return state, TimeStep.create(self._observe(state))

    def step(self, state: MountainCarState, action: jax.Array) -> tuple[MountainCarState, TimeStep]:
        state = self._roll(state, (action - 1.0) * self.force)
        return state, TimeStep.create(self._observe(state), -1.0, self._at_goal(state))

    def _roll(self, state: MountainCarState, acceleration: jax.Array) -> MountainCarState:
        velocity = state.velocity + acceleration - self.gravity * jnp.cos(3 * state.position)
        velocity = jnp.clip(velocity, -self.max_speed, self.max_speed)
        position = jnp.clip(state.position + velocity, self.min_position, self.max_position)
        # Only the left wall takes the speed away; at the right end the car keeps it.
        velocity = jnp.where((position <= self.min_position) & (velocity < 0), 0, velocity)
        return MountainCarState(position=position, velocity=velocity)

    def _at_goal(self, state: MountainCarState) -> jax.Array:
        return (state.position >= self.goal_position) & (state.velocity >= self.goal_velocity)

    def _observe(self, state: MountainCarState) -> jax.Array:
        return jnp.stack([state.position, state.velocity]).astype(jnp.float32)

    def draw(self, state: MountainCarState, height: int, width: int) -> jax.Array:
        canvas = background(_landscape, height, width, self.min_position, self.max_position, self.goal_position)
        at, angle = (state.position, _height(state.position) + 0.03), jnp.cos(3 * state.position)
        canvas = canvas.box(-0.06, 0.06, 0.0, 0.06, BLACK, at, angle)
        for place in (-0.03, 0.03):
            wheel = (at[0] + place * jnp.cos(angle), at[1] + place * jnp.sin(angle))
            canvas = canvas.circle(wheel, 0.024, (128, 128, 128))
        return canvas.picture()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _landscape(height: int, width: int, left: Number, right: Number, goal: Number) -> Canvas:
    """Draw the hill, and the flag at its top."""
    pixel = (right - left) / 600  # of Gymnasium's picture
    canvas = Canvas.blank(height, width, left, right, 0.0, 400 * pixel).graph(_height, BLACK, width=pixel)
    foot, top = _height(goal), _height(goal) + 0.15
    canvas = canvas.box(goal - pixel / 2, goal + pixel / 2, foot, top, BLACK)
    return canvas.polygon([(goal, top), (goal, top - 0.03), (goal + 0.075, top - 0.015)], (204, 204, 0))


def _height(position: Number) -> jax.Array:
    """Return the height of the hill in the picture. Its slope is proportional to gravity's pull in the equations."""
    return 0.55 + 0.45 * jnp.sin(3 * position)
