"""Running normalization of observations and rewards, with the meaning of Stable-Baselines3's VecNormalize."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxenvs.environment import static, struct
from jaxenvs.learn import devices
from jaxenvs.learn.interfaces import Arrays
from jaxenvs.vector import VectorTimeStep


@struct
class Moments:
    """Running mean and variance, and the number of samples that they summarize.

    Attributes:
      mean, variance: in the shape of one sample.
      count: float (), how many samples.
    """

    mean: jax.Array
    variance: jax.Array
    count: jax.Array

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> Moments:
        """Return the moments of no samples, which change nothing when they are combined with others."""
        return cls(jnp.zeros(shape), jnp.zeros(shape), jnp.zeros(()))

    @classmethod
    def prior(cls, shape: tuple[int, ...] = ()) -> Moments:
        """Return the moments that VecNormalize starts from: 1e-4 samples with mean 0 and variance 1."""
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.full((), 1e-4))

    @classmethod
    def of(cls, batch: jax.Array, axis_name: str | None = None) -> Moments:
        """Return the moments of a batch, over its leading axis, and over all devices."""
        number = devices.axis_size(axis_name) * batch.shape[0]
        moments = devices.mean(batch, 0, axis_name), devices.var(batch, 0, axis_name)
        return cls(*moments, jnp.asarray(number, float))

    def combine(self, other: Moments) -> Moments:
        """Return the moments of both together (Chan, Golub & LeVeque 1979). Increments keep digits in float32."""
        count = self.count + other.count
        share = jnp.where(count > 0, other.count / jnp.maximum(count, 1e-30), 0)
        delta = other.mean - self.mean
        variance = self.variance + share * (other.variance - self.variance + (1 - share) * delta**2)
        return Moments(self.mean + share * delta, variance, count)


@struct
class Normalizer:
    """Statistics and settings of a running normalization, as VecNormalize has them.

    Statistics are kept in two parts: the known history, and what `*_seen` adds to it. A rollout therefore sums up only
    itself in float32, and its sum can be merged into a long history in float64.

    Attributes:
      observation, observation_seen: Moments for each array of the observation that is normalized, else None: a pytree
        with the observation's structure.
      reward, reward_seen: Moments of the discounted return, whose standard deviation scales rewards.
      discounted_return: (num_envs,).
      gamma, epsilon, clip_observation, clip_reward: VecNormalize's.
      training: whether statistics are updated.
      norm_reward: whether rewards are scaled.
    """

    observation: Any
    observation_seen: Any
    reward: Moments
    reward_seen: Moments
    discounted_return: jax.Array
    gamma: float = 0.99
    epsilon: float = 1e-8
    clip_observation: float = 10.0
    clip_reward: float = 10.0
    training: bool = static(default=True)
    norm_reward: bool = static(default=True)

    @classmethod
    def create(cls, observation: Arrays, num_envs: int, **settings: Any) -> Normalizer:
        """Return the normalizer before it has seen any data.

        Args:
          observation: a batch of observations, of which only shapes are used.
          num_envs: the number of environments.
          settings: `gamma`, `epsilon`, `clip_observation`, `clip_reward`, `training`, `norm_reward`.
        """
        return cls(
            observation=jax.tree.map(lambda leaf: Moments.prior(leaf.shape[1:]), observation),
            observation_seen=jax.tree.map(lambda leaf: Moments.empty(leaf.shape[1:]), observation),
            reward=Moments.prior(),
            reward_seen=Moments.empty(),
            discounted_return=jnp.zeros(num_envs),
            **settings,
        )

    def replace(self, **changes: Any) -> Normalizer:
        """Return a copy with some attributes changed."""
        return type(self)(**{**vars(self), **changes})

    def update(self, observation: Arrays, axis_name: str | None = None) -> Normalizer:
        """Add a batch of observations, of all devices, to the statistics, if they are updated (`training`)."""
        if not self.training:
            return self
        seen = _map_normalized(
            lambda moments, leaf: moments.combine(Moments.of(leaf, axis_name)),
            self.observation_seen,
            observation,
            lambda _: None,
        )
        return self.replace(observation_seen=seen)

    def normalize_observation(self, observation: Arrays) -> Any:
        """Scale observations by the statistics so far, and clip them; arrays without statistics stay as they are."""
        moments = _combine(self.observation, self.observation_seen)
        return _map_normalized(self._normalize, moments, observation, lambda leaf: leaf)

    def normalize_reward(self, reward: jax.Array) -> jax.Array:
        """Scale rewards by the statistics so far, and clip them; without `norm_reward`, return them unchanged."""
        if not self.norm_reward:
            return reward
        variance = self.reward.combine(self.reward_seen).variance
        return jnp.clip(reward / jnp.sqrt(variance + self.epsilon), -self.clip_reward, self.clip_reward)

    def step(self, timestep: VectorTimeStep, axis_name: str | None = None) -> tuple[Normalizer, VectorTimeStep]:
        """Add a TimeStep to the statistics, and return it with observation, final observation and reward normalized.

        As in VecNormalize, only the observations from which the policy continues are added, not the final ones.
        """
        normalizer = self.update(timestep.observation, axis_name)
        if self.training:
            returns = self.discounted_return * self.gamma + timestep.reward
            normalizer = normalizer.replace(reward_seen=self.reward_seen.combine(Moments.of(returns, axis_name)))
        else:
            returns = self.discounted_return
        timestep = timestep.replace(
            observation=normalizer.normalize_observation(timestep.observation),
            final_observation=normalizer.normalize_observation(timestep.final_observation),
            reward=normalizer.normalize_reward(timestep.reward),
        )
        return normalizer.replace(discounted_return=jnp.where(timestep.done, 0, returns)), timestep

    def merge(self) -> Normalizer:
        """Return the normalizer with the moments seen so far merged into the known history."""
        return self.replace(
            observation=_combine(self.observation, self.observation_seen),
            observation_seen=jax.tree.map(jnp.zeros_like, self.observation_seen),
            reward=self.reward.combine(self.reward_seen),
            reward_seen=Moments.empty(),
        )

    def layout(self, sharded: PartitionSpec, same: PartitionSpec) -> Normalizer:
        """Return a prefix of this pytree: `sharded` for leaves with an axis of environments, `same` elsewhere."""
        data = {field.name for field in dataclasses.fields(self) if not field.metadata.get("static")}
        return self.replace(**{name: sharded if name == "discounted_return" else same for name in data})

    def _normalize(self, moments: Moments, leaf: jax.Array) -> jax.Array:
        scaled = (leaf - moments.mean) / jnp.sqrt(moments.variance + self.epsilon)
        return jnp.clip(scaled, -self.clip_observation, self.clip_observation).astype(jnp.float32)


def _is_moments(node: object) -> bool:
    return node is None or isinstance(node, Moments)


def _map_normalized(function: Any, moments: Any, observation: Arrays, otherwise: Any) -> Any:
    """Map `function(moments, leaf)` where there are moments, else `otherwise(leaf)`, in the observation's structure."""
    return jax.tree.map(
        lambda m, leaf: otherwise(leaf) if m is None else function(m, leaf), moments, observation, is_leaf=_is_moments
    )


def _combine(moments: Any, seen: Any) -> Any:
    return jax.tree.map(lambda m, s: None if m is None else m.combine(s), moments, seen, is_leaf=_is_moments)
