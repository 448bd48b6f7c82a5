"""Noise on the actions of a Box, for exploration: SB3's, for all environments at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxenvs.environment import struct
from jaxenvs.learn.interfaces import Array, Real


@struct
class NormalActionNoise:
    """Independent normal noise in each step. Use it with policies that are deterministic, as TD3's and DDPG's.

    Attributes:
      mean, sigma: of the noise on actions in [-1, 1]; numbers, or one for each dimension of an action.
    """

    mean: Real
    sigma: Real

    def init(self, like: jax.Array) -> None:
        """Return the state before the first step; `like`: actions of all environments, (num_envs, n)."""
        return None

    def step(self, state: None, normal: jax.Array) -> tuple[None, Array]:
        """Return the next state, and the noise of a step, from standard normal numbers, (num_envs, n)."""
        return state, self.mean + self.sigma * normal

    def reset(self, state: None, done: jax.Array) -> None:
        """Return the state after a reset of the environments whose episode ended, (num_envs,)."""
        return state


@struct
class OrnsteinUhlenbeckActionNoise:
    """Correlated noise that drifts back to its mean: Brownian motion with friction.

    Attributes:
      mean, sigma: of the noise on actions in [-1, 1]; numbers, or one for each dimension of an action.
      theta: the friction.
      dt: the length of a step.
      initial_noise: the noise at the beginning of each episode.
    """

    mean: Real
    sigma: Real
    theta: Real = 0.15
    dt: Real = 1e-2
    initial_noise: Real = 0.0

    def init(self, like: jax.Array) -> jax.Array:
        """Return the state before the first step; `like`: actions of all environments, (num_envs, n)."""
        return jnp.broadcast_to(jnp.asarray(self.initial_noise, like.dtype), like.shape)

    def step(self, state: jax.Array, normal: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the next state, and the noise of a step, from standard normal numbers, (num_envs, n)."""
        noise = state + self.theta * (self.mean - state) * self.dt + self.sigma * jnp.sqrt(self.dt) * normal
        return noise, noise

    def reset(self, state: jax.Array, done: jax.Array) -> jax.Array:
        """Return the state with `initial_noise` in environments whose episode ended, (num_envs,)."""
        return jnp.where(done[:, None], jnp.asarray(self.initial_noise, state.dtype), state)
