"""Pendulum: swing a pendulum up and hold it there."""

from __future__ import annotations

import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.drawing import BLACK, Canvas
from jaxenvs.environment import Environment, TimeStep, environment, struct


@struct
class PendulumState:
    """State of a Pendulum: angle [rad], 0 where it stands upright and not wrapped, and angular velocity [rad/s]."""

    theta: jax.Array
    theta_dot: jax.Array


@environment
class Pendulum(Environment[PendulumState]):
    """Swing up a rod that hangs from its end, with a torque [N m], float32 (1,) from -2 to 2, as Pendulum-v1.

    Observation: float32 (3,): cos theta, sin theta, theta_dot. Reward: minus the squared distance from upright and at
    rest, minus a cost of the torque; of the state before the step. Never terminates.
    Source: the equation of motion of a uniform rod, moment of inertia m l^2 / 3, in semi-implicit Euler steps.

    Attributes:
      gravity: m/s^2.
      mass: kg.
      length: m.
      max_torque: N m.
      max_speed: rad/s.
      timestep_length: s.
    """

    gravity: float = 10.0
    mass: float = 1.0
    length: float = 1.0
    max_torque: float = 2.0
    max_speed: float = 8.0
    timestep_length: float = 0.05

    render_size = 500, 500

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        high = np.array([1.0, 1.0, self.max_speed], np.float32)
        return gymnasium.spaces.Box(-high, high, dtype=np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Box:
        high = np.array([self.max_torque], np.float32)
        return gymnasium.spaces.Box(-high, high, dtype=np.float32)

    def reset(self, key: jax.Array) -> tuple[PendulumState, TimeStep]:
        theta, theta_dot = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        state = PendulumState(theta=math.pi * theta, theta_dot=theta_dot)
        return state, TimeStep.create(self._observe(state))

    def step(self, state: PendulumState, action: jax.Array) -> tuple[PendulumState, TimeStep]:
        torque = jnp.clip(jnp.asarray(action[0], float), -self.max_torque, self.max_torque)
        # A remainder would be a function call for each environment, while this is a few vector instructions.
        from_upright = state.theta - 2 * math.pi * jnp.floor(state.theta / (2 * math.pi) + 0.5)
        cost = from_upright**2 + 0.1 * state.theta_dot**2 + 0.001 * torque**2

        acceleration = 1.5 * self.gravity / self.length * jnp.sin(state.theta) + 3 * torque / (
            self.mass * self.length**2
        )
        theta_dot = state.theta_dot + self.timestep_length * acceleration
        theta_dot = jnp.clip(theta_dot, -self.max_speed, self.max_speed)
        state = PendulumState(theta=state.theta + self.timestep_length * theta_dot, theta_dot=theta_dot)
        return state, TimeStep.create(self._observe(state), -cost)

    def _observe(self, state: PendulumState) -> jax.Array:
        return jnp.stack([jnp.cos(state.theta), jnp.sin(state.theta), state.theta_dot]).astype(jnp.float32)

    def draw(self, state: PendulumState, height: int, width: int) -> jax.Array:
        canvas = Canvas.blank(height, width, -2.2, 2.2, -2.2, 2.2)  # in lengths of the rod
        tip = (-jnp.sin(state.theta), jnp.cos(state.theta))  # counter-clockwise from upright
        canvas = canvas.rod((0.0, 0.0), tip, (204, 77, 77), width=0.2)
        return canvas.circle((0.0, 0.0), 0.05, BLACK).picture()
