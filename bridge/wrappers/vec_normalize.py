"""VecNormalize in compiled rollouts: observations and rewards scaled by their running statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from numpy.typing import ArrayLike
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from bridge.errors import NotCompilable
from bridge.originals import has_own_methods
from bridge.wrappers.compiled_wrapper import CompiledWrapper
from jaxenvs import VectorTimeStep, static, struct
from jaxenvs.learn import Moments, Normalizer


@struct
class NormalizeState:
    """Statistics and settings, and the last observation and reward before normalization.

    Attributes:
      normalizer: the statistics and settings.
      old_obs, old_reward: the last observation and reward, not normalized.
      axis_name: the axis of the devices over which environments are divided, for statistics of all of them; None if
        they are not divided.
    """

    normalizer: Normalizer
    old_obs: object
    old_reward: object
    axis_name: str | None = static(default=None)


class CompiledNormalize(CompiledWrapper[VecNormalize]):
    """Compiled VecNormalize. Within a rollout, sums are in JAX's float; SB3's statistics add them in float64."""

    any_num_envs = divides = True

    def __init__(self, wrapper: VecNormalize) -> None:
        super().__init__(wrapper)
        own = own_statistics(wrapper)
        if own is not None:
            what = "has a replaced method" if own is RunningMeanStd else f"is a {own.__name__}"
            raise NotCompilable(f"A RunningMeanStd of the VecNormalize {what}, and may compute other statistics.")

    @property
    def can_continue(self) -> bool:
        return not self.wrapper.training  # else the host adds a rollout's sums to the previous ones, in float64

    def around(self, venv: VecEnv) -> VecNormalize:
        new = super().around(venv)
        new.training = False  # an evaluation does not update the statistics, which are shared
        return new

    def state(self) -> NormalizeState:
        env = self.wrapper
        normalizer = Normalizer(
            observation=self._map_statistics(_moments),
            observation_seen=self._map_statistics(lambda rms: _no_moments(rms.mean.shape)),
            reward=_moments(env.ret_rms),
            reward_seen=_no_moments(()),
            discounted_return=_array(env.returns),
            gamma=env.gamma,
            epsilon=env.epsilon,
            clip_observation=env.clip_obs,
            clip_reward=env.clip_reward,
            training=bool(env.training),
            norm_reward=bool(env.norm_reward),
        )
        mesh = getattr(env.unwrapped, "mesh", None)
        axis_name = None if mesh is None else mesh.axis_names[0]
        old_reward = np.zeros(env.num_envs, np.float32)
        return NormalizeState(normalizer, self._old_obs(), old_reward, axis_name)

    @staticmethod
    def step(
        state: NormalizeState, timestep: VectorTimeStep, action: object
    ) -> tuple[NormalizeState, VectorTimeStep, tuple[()]]:
        normalizer, normalized = state.normalizer.step(timestep, state.axis_name)
        old_obs = jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), timestep.observation, state.old_obs)
        normalized = normalized.replace(reward=normalized.reward.astype(jnp.float32))
        after = dataclasses.replace(state, normalizer=normalizer, old_obs=old_obs, old_reward=timestep.reward)
        return after, normalized, ()

    @staticmethod
    def layout(state: NormalizeState, per_env: Any, same: Any) -> NormalizeState:
        return dataclasses.replace(
            state, normalizer=state.normalizer.layout(per_env, same), old_obs=per_env, old_reward=per_env
        )

    def write_back(self, state: NormalizeState) -> None:
        env, normalizer = self.wrapper, state.normalizer
        if normalizer.training:
            jax.tree.map(_add, self._map_statistics(lambda rms: rms), normalizer.observation_seen)
            _add(env.ret_rms, normalizer.reward_seen)
        env.returns = np.array(normalizer.discounted_return, np.float64)
        env.old_obs = jax.tree.map(lambda leaf, old: np.array(leaf, old.dtype), state.old_obs, self._old_obs())
        env.old_reward = np.array(state.old_reward)

    def _old_obs(self) -> object:
        """Return the last observation before normalization; before the first one, zeros."""
        env = self.wrapper
        if "old_obs" in vars(env):
            return env.old_obs
        return create_empty_array(env.venv.observation_space, env.num_envs)

    def _map_statistics(self, function: Callable[[RunningMeanStd], object]) -> object:
        """Apply `function` to the RunningMeanStd of each normalized array of the observation; None for others."""
        env = self.wrapper
        if not env.norm_obs:
            return None
        if isinstance(env.obs_rms, dict):
            rms, space = env.obs_rms, cast(spaces.Dict, env.observation_space)
            return {name: function(rms[name]) if name in rms else None for name in space.spaces}
        return function(env.obs_rms)


def own_statistics(env: VecNormalize) -> type | None:
    """Return the class of statistics that are not SB3's, or to which a method was assigned; None if all are SB3's."""
    observations = vars(env).get("obs_rms") if env.norm_obs else {}
    for rms in (*(observations.values() if isinstance(observations, dict) else (observations,)), env.ret_rms):
        # Exactly this class, because a subclass may override anything.
        if type(rms) is not RunningMeanStd or has_own_methods(rms):
            return type(rms)
    return None


def _array(numbers: ArrayLike) -> Any:
    """Return `jnp.asarray(numbers, float)`, but with NumPy: uncompiled operations of JAX cost dispatch."""
    return np.asarray(numbers, jax.dtypes.canonicalize_dtype(float))


def _moments(rms: RunningMeanStd) -> Moments:
    return Moments(_array(rms.mean), _array(rms.var), _array(rms.count))


def _no_moments(shape: tuple[int, ...]) -> Moments:
    """Return empty moments, as `Moments.empty` does."""
    return Moments(_array(np.zeros(shape)), _array(np.zeros(shape)), _array(0))


def _add(rms: RunningMeanStd, seen: Moments) -> None:
    """Add the moments of a rollout to the statistics, in float64."""
    mean, variance, count = (np.asarray(part, np.float64) for part in (seen.mean, seen.variance, seen.count))
    rms.update_from_moments(mean, variance, float(count))
