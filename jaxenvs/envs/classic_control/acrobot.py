"""Acrobot: swing up two links with a motor between them."""

from __future__ import annotations

import math
from typing import Literal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import number
from jaxenvs.drawing import BLACK, Canvas
from jaxenvs.environment import Environment, TimeStep, environment, static, struct

Phase = tuple[jax.Array, ...]  # theta_1, theta_2, theta_1_dot, theta_2_dot; or their derivatives


@struct
class AcrobotState:
    """State of an Acrobot: angles [rad, from -pi to pi] and angular velocities [rad/s] of the two links.

    `theta_1` is 0 where the first link hangs down, `theta_2` is 0 where the second link is aligned with the first.
    `key` is None unless the torque is noisy.
    """

    theta_1: jax.Array
    theta_2: jax.Array
    theta_1_dot: jax.Array
    theta_2_dot: jax.Array
    key: jax.Array | None


@environment
class Acrobot(Environment[AcrobotState]):
    """Swing the end of two links above the bar: torque -1 (0), none (1) or +1 (2), as Gymnasium's Acrobot-v1.

    Observation: float32 (6,): cos and sin of theta_1, cos and sin of theta_2, theta_1_dot, theta_2_dot.
    Reward: -1 per step, 0 for the last one.
    Source: Sutton (1996), "Generalization in reinforcement learning"; Sutton & Barto (1998), section 11.3. The paper
    lacks a term that the book has and the experiments of both had: `dynamics` chooses.

    Attributes:
      gravity: m/s^2.
      link_mass_1, link_mass_2: kg.
      link_length_1, link_length_2: m; the second is used only in the picture.
      center_of_mass_1, center_of_mass_2: m from the upper end of the link.
      moment_of_inertia: kg m^2, of each link.
      torque_magnitude: N m.
      max_speed_1, max_speed_2: rad/s.
      timestep_length: s.
      dynamics: "book", or "nips" for the paper's equations.
      torque_noise_max: N m, the bound of a uniform noise on the torque; static, because without noise nothing is drawn.
    """

    gravity: float = 9.8
    link_mass_1: float = 1.0
    link_mass_2: float = 1.0
    link_length_1: float = 1.0
    link_length_2: float = 1.0
    center_of_mass_1: float = 0.5
    center_of_mass_2: float = 0.5
    moment_of_inertia: float = 1.0
    torque_magnitude: float = 1.0
    max_speed_1: float = 4 * math.pi
    max_speed_2: float = 9 * math.pi
    timestep_length: float = 0.2
    dynamics: Literal["book", "nips"] = static(default="book")
    torque_noise_max: float = static(default=0.0)

    render_fps = 15
    render_size = 500, 500

    def __check_init__(self) -> None:
        super().__check_init__()
        number("torque_noise_max", self.torque_noise_max, least=0)
        if self.dynamics not in ("book", "nips"):
            raise ValueError(f"dynamics must be 'book' or 'nips', got {self.dynamics!r}.")

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        high = np.array([1.0, 1.0, 1.0, 1.0, self.max_speed_1, self.max_speed_2], np.float32)
        return gymnasium.spaces.Box(-high, high, dtype=np.float32)

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(3)

    def reset(self, key: jax.Array) -> tuple[AcrobotState, TimeStep]:
        noise_key = None
        if self.torque_noise_max > 0:
            key, noise_key = jax.random.split(key)
        theta_1, theta_2, theta_1_dot, theta_2_dot = 0.1 * jax.random.uniform(key, (4,), minval=-1.0, maxval=1.0)
        state = AcrobotState(theta_1, theta_2, theta_1_dot, theta_2_dot, key=noise_key)
        return state, TimeStep.create(self._observe(state))

    def step(self, state: AcrobotState, action: jax.Array) -> tuple[AcrobotState, TimeStep]:
        torque = (action - 1.0) * self.torque_magnitude
        if state.key is None:
            return self._swing(state, torque, None)
        key, noise_key = jax.random.split(state.key)
        noise = jax.random.uniform(noise_key, (), minval=-self.torque_noise_max, maxval=self.torque_noise_max)
        return self._swing(state, torque + noise, key)

    def _swing(self, state: AcrobotState, torque: jax.Array, key: jax.Array | None) -> tuple[AcrobotState, TimeStep]:
        """Compute the deterministic part of a step; `key` is for the next step."""
        phase = (state.theta_1, state.theta_2, state.theta_1_dot, state.theta_2_dot)
        theta_1, theta_2, theta_1_dot, theta_2_dot = self._integrate(phase, torque)
        state = AcrobotState(
            theta_1=wrap_angle(theta_1),
            theta_2=wrap_angle(theta_2),
            theta_1_dot=jnp.clip(theta_1_dot, -self.max_speed_1, self.max_speed_1),
            theta_2_dot=jnp.clip(theta_2_dot, -self.max_speed_2, self.max_speed_2),
            key=key,
        )
        terminated = -jnp.cos(state.theta_1) - jnp.cos(state.theta_1 + state.theta_2) > 1.0
        return state, TimeStep.create(self._observe(state), jnp.where(terminated, 0.0, -1.0), terminated)

    def _integrate(self, phase: Phase, torque: jax.Array) -> Phase:
        """Take one step of the classical fourth-order Runge-Kutta method."""

        def ahead(slope: Phase, time: float) -> Phase:
            return tuple(value + time * rate for value, rate in zip(phase, slope, strict=True))

        length = self.timestep_length
        first = self._slope(phase, torque)
        second = self._slope(ahead(first, length / 2), torque)
        third = self._slope(ahead(second, length / 2), torque)
        fourth = self._slope(ahead(third, length), torque)
        mean = tuple((a + 2 * (b + c) + d) / 6 for a, b, c, d in zip(first, second, third, fourth, strict=True))
        return ahead(mean, length)

    def _slope(self, phase: Phase, torque: jax.Array) -> Phase:
        """Return the time derivative: velocities and accelerations. The variable names are the book's."""
        theta_1, theta_2, theta_1_dot, theta_2_dot = phase
        m1, m2, l1 = self.link_mass_1, self.link_mass_2, self.link_length_1
        lc1, lc2, inertia, g = self.center_of_mass_1, self.center_of_mass_2, self.moment_of_inertia, self.gravity
        sine, cosine = jnp.sin(theta_2), jnp.cos(theta_2)

        coupling = m2 * l1 * lc2
        d1 = m1 * lc1**2 + m2 * (l1**2 + lc2**2) + 2 * inertia + 2 * coupling * cosine
        d2 = m2 * lc2**2 + inertia + coupling * cosine
        phi2 = m2 * lc2 * g * jnp.sin(theta_1 + theta_2)
        phi1 = (m1 * lc1 + m2 * l1) * g * jnp.sin(theta_1) + phi2
        phi1 -= coupling * sine * theta_2_dot * (theta_2_dot + 2 * theta_1_dot)

        load = torque + d2 / d1 * phi1 - phi2
        if self.dynamics == "book":
            load -= coupling * sine * theta_1_dot**2
        acceleration_2 = load / (m2 * lc2**2 + inertia - d2**2 / d1)
        acceleration_1 = -(d2 * acceleration_2 + phi1) / d1
        return theta_1_dot, theta_2_dot, acceleration_1, acceleration_2

    def _observe(self, state: AcrobotState) -> jax.Array:
        angles = (jnp.cos(state.theta_1), jnp.sin(state.theta_1), jnp.cos(state.theta_2), jnp.sin(state.theta_2))
        return jnp.stack([*angles, state.theta_1_dot, state.theta_2_dot]).astype(jnp.float32)

    def draw(self, state: AcrobotState, height: int, width: int) -> jax.Array:
        upper, lower = self.link_length_1, self.link_length_2
        reach = upper + lower + 0.2
        canvas = Canvas.blank(height, width, -reach, reach, -reach, reach)
        canvas = canvas.box(-reach, reach, 1 - reach / 500, 1 + reach / 500, BLACK)  # a pixel of Gymnasium's picture
        elbow = (upper * jnp.sin(state.theta_1), -upper * jnp.cos(state.theta_1))
        links = (((0.0, 0.0), upper, state.theta_1), (elbow, lower, state.theta_1 + state.theta_2))
        for joint, length, angle in links:
            canvas = canvas.box(-0.1, 0.1, -length, 0.0, (0, 204, 204), joint, angle)
            canvas = canvas.circle(joint, 0.1, (204, 204, 0))
        return canvas.picture()


def wrap_angle(angle: jax.Array) -> jax.Array:
    """Return the same angle from -pi to pi, both included, however many turns it is away."""
    over = jnp.maximum(jnp.ceil((angle - math.pi) / (2 * math.pi)), 0)
    under = jnp.minimum(jnp.floor((angle + math.pi) / (2 * math.pi)), 0)
    return angle - 2 * math.pi * (over + under)
