"""CartPole: balance a pole on a cart."""

from __future__ import annotations

import math

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.drawing import BLACK, Canvas
from jaxenvs.environment import Environment, TimeStep, environment, static, struct


@struct
class CartPoleState:
    """State of a CartPole: position [m], velocity [m/s], and the pole's angle [rad] and angular velocity [rad/s].

    `fallen` is True if the episode ended before: a step after the end earns nothing.
    """

    x: jax.Array
    x_dot: jax.Array
    theta: jax.Array
    theta_dot: jax.Array
    fallen: jax.Array


@environment
class CartPole(Environment[CartPoleState]):
    """Balance a pole on a cart by pushing the cart left (0) or right (1), as Gymnasium's CartPole-v1.

    Observation: float32 (4,): x, x_dot, theta, theta_dot. Reward: 1 per step, including the last one.
    Source: Barto, Sutton & Anderson (1983); the equations without friction are from Florian (2007), "Correct equations
    for the dynamics of the cart-pole system".

    Attributes:
      gravity: m/s^2.
      cart_mass, pole_mass: kg.
      half_length: m, half of the pole.
      force_magnitude: N.
      timestep_length: s.
      position_limit: m, from the middle; beyond it the episode ends.
      angle_limit: rad, from upright; beyond it the episode ends.
      semi_implicit_euler: whether positions use the velocities after the step, instead of before it.
      sutton_barto_reward: 0 per step and -1 for the fall, instead of 1 per step.
    """

    gravity: float = 9.8
    cart_mass: float = 1.0
    pole_mass: float = 0.1
    half_length: float = 0.5
    force_magnitude: float = 10.0
    timestep_length: float = 0.02
    position_limit: float = 2.4
    angle_limit: float = 12 * 2 * math.pi / 360
    semi_implicit_euler: bool = static(default=False)
    sutton_barto_reward: bool = static(default=False)

    render_fps = 50

    @property
    def total_mass(self) -> float:
        return self.cart_mass + self.pole_mass

    @property
    def pole_mass_length(self) -> float:
        return self.pole_mass * self.half_length

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        high = np.array([2 * self.position_limit, np.inf, 2 * self.angle_limit, np.inf], np.float32)
        return gymnasium.spaces.Box(-high, high, dtype=np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(2)

    def reset(self, key: jax.Array) -> tuple[CartPoleState, TimeStep]:
        # Scale after the draw: `uniform` between other bounds than -1 and 1 multiplies and adds, and the batch size
        # would decide whether XLA rounds once or twice.
        x, x_dot, theta, theta_dot = 0.05 * jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        state = CartPoleState(x=x, x_dot=x_dot, theta=theta, theta_dot=theta_dot, fallen=jnp.zeros((), bool))
        return state, TimeStep.create(self._observe(state))

    def step(self, state: CartPoleState, action: jax.Array) -> tuple[CartPoleState, TimeStep]:
        force = jnp.where(action == 1, self.force_magnitude, -self.force_magnitude)
        acceleration, angular_acceleration = self._accelerations(state, force)
        x_dot = state.x_dot + self.timestep_length * acceleration
        theta_dot = state.theta_dot + self.timestep_length * angular_acceleration
        # Explicit Euler moves with the velocity before the step, semi-implicit Euler with the one after it.
        moving = (x_dot, theta_dot) if self.semi_implicit_euler else (state.x_dot, state.theta_dot)
        x = state.x + self.timestep_length * moving[0]
        theta = state.theta + self.timestep_length * moving[1]

        terminated = (jnp.abs(x) > self.position_limit) | (jnp.abs(theta) > self.angle_limit)
        if self.sutton_barto_reward:
            reward = jnp.where(terminated, -1.0, 0.0)
        else:
            reward = jnp.where(terminated & state.fallen, 0.0, 1.0)
        state = CartPoleState(x=x, x_dot=x_dot, theta=theta, theta_dot=theta_dot, fallen=state.fallen | terminated)
        return state, TimeStep.create(self._observe(state), reward, terminated)

    def _accelerations(self, state: CartPoleState, force: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the accelerations of the cart [m/s^2] and of the pole [rad/s^2]."""
        sine, cosine = jnp.sin(state.theta), jnp.cos(state.theta)
        push = (force + self.pole_mass_length * state.theta_dot**2 * sine) / self.total_mass
        angular = (self.gravity * sine - cosine * push) / (
            self.half_length * (4 / 3 - self.pole_mass * cosine**2 / self.total_mass)
        )
        return push - self.pole_mass_length * angular * cosine / self.total_mass, angular

    def _observe(self, state: CartPoleState) -> jax.Array:
        return jnp.stack([state.x, state.x_dot, state.theta, state.theta_dot]).astype(jnp.float32)

    def draw(self, state: CartPoleState, height: int, width: int) -> jax.Array:
        limit = self.position_limit
        canvas = Canvas.blank(height, width, -limit, limit, -limit / 3, limit)
        canvas = canvas.box(-limit, limit, 0.0, 0.008, BLACK)
        canvas = canvas.box(-0.2, 0.2, -0.12, 0.12, BLACK, at=(state.x, 0.0))
        axle = (state.x, 0.06)
        canvas = canvas.box(-0.04, 0.04, -0.04, 2 * self.half_length - 0.04, (202, 152, 101), axle, -state.theta)
        return canvas.circle(axle, 0.04, (129, 132, 203)).picture()
