"""The environments of a model, as a compiled rollout sees them: JaxVecEnv, and the wrappers that can be compiled."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize, VecTransposeImage

from bridge.policy import NotCompilable
from bridge.programs import Outputs
from bridge.vec_env import JaxVecEnv
from jaxenvs.learn import Moments, Normalizer


class CompiledEnv:
    """A JaxVecEnv with at most one VecNormalize and any number of VecMonitors around it, and outermost perhaps the
    VecTransposeImage that SB3 puts around images whose channels come last.

    Their state goes into a compiled rollout and comes back, so that before and after it they are what they would be
    had every step gone through them.
    """

    def __init__(self, env: VecEnv | None) -> None:
        """
        Raises:
          NotCompilable: something else is there.
        """
        self.transpose: VecTransposeImage | None = None
        if type(env) is VecTransposeImage:
            self.transpose, env = env, env.venv
        self.normalize: VecNormalize | None = None
        self.inner_monitors: list[VecMonitor] = []
        self.outer_monitors: list[VecMonitor] = []
        # Exact types: a subclass may do anything.
        while type(env) is not JaxVecEnv:
            if type(env) is VecMonitor:
                (self.outer_monitors if self.normalize is None else self.inner_monitors).insert(0, env)
            elif type(env) is VecNormalize and self.normalize is None:
                self.normalize = env
            else:
                raise NotCompilable(
                    f"{type(env).__name__} is not compiled; what is: JaxVecEnv in one VecNormalize and VecMonitors."
                )
            env = env.venv
        self.base: JaxVecEnv = env

    def observation_of(self, seen: Any) -> Any:
        """Observations as the policy sees them, as a compiled rollout starts from: channels where the environment has
        them, in JAX's dtypes.
        """

        def convert(leaf: Any, now: np.ndarray) -> np.ndarray:
            if self.transpose is not None and len(leaf.shape) == 4 and now.shape != leaf.shape:
                now = np.moveaxis(now, 1, -1)
            return np.asarray(now, leaf.dtype).reshape(leaf.shape)

        return jax.tree.map(convert, self._observation, seen)

    @property
    def changes_observations(self) -> bool:
        """Whether the policy sees other observations than the environments give."""
        return self.normalize is not None or self.transpose is not None

    @property
    def _observation(self) -> Any:
        """What the policy gets, but for the transposition, as a pytree of `jax.ShapeDtypeStruct`."""
        raw = self.base.programs.observation
        if self.normalize is None:
            return raw
        return jax.tree.map(
            lambda rms, leaf: leaf if rms is None else jax.eval_shape(jnp.float32, leaf),
            self._moments(raw, lambda rms: rms),
            raw,
            is_leaf=lambda node: node is None or isinstance(node, RunningMeanStd),
        )

    @property
    def has_monitors(self) -> bool:
        """Whether some VecMonitor wants to hear of every step."""
        return bool(self.inner_monitors or self.outer_monitors)

    def normalizer(self) -> Normalizer | None:
        """The VecNormalize's state and settings; None if there is none."""
        env = self.normalize
        if env is None:
            return None
        raw = self.base.programs.observation
        return Normalizer(
            observation=self._moments(raw, _moments),
            observation_seen=self._moments(raw, lambda rms: Moments.empty(rms.mean.shape)),
            reward=_moments(env.ret_rms),
            reward_seen=Moments.empty(),
            discounted_return=jnp.asarray(env.returns, float),
            gamma=env.gamma,
            epsilon=env.epsilon,
            clip_observation=env.clip_obs,
            clip_reward=env.clip_reward,
            training=bool(env.training),
            norm_reward=bool(env.norm_reward),
        )

    def put_back(self, normalizer: Normalizer | None, raw_observation: Any, raw_reward: np.ndarray) -> None:
        """Let the VecNormalize go on from where the rollout ended.

        Args:
          normalizer: as the rollout left it.
          raw_observation, raw_reward: the last ones, before normalisation.
        """
        env = self.normalize
        if env is None or normalizer is None:
            return
        if env.training:
            seen = normalizer.observation_seen
            if env.norm_obs and isinstance(env.obs_rms, dict):
                for name, rms in env.obs_rms.items():
                    _update(rms, seen[name])
            elif env.norm_obs:
                _update(env.obs_rms, seen)
            _update(env.ret_rms, normalizer.reward_seen)
        env.returns = np.array(normalizer.discounted_return, np.float64)
        env.old_obs = raw_observation
        env.old_reward = raw_reward

    def infos(
        self,
        raw_rewards: np.ndarray,
        rewards: np.ndarray,
        ended: np.ndarray,
        outputs: Outputs,
        final_observation: Any,
    ) -> list[dict[str, Any]]:
        """The infos of one step, as the outermost wrapper gives them.

        Args:
          raw_rewards, rewards: before and after the VecNormalize, (num_envs,).
          ended: the numbers of the environments whose episode ended.
          outputs: of the step, as lists of leaves on the host.
          final_observation: as the policy sees it, on the host, if that is another than the environments give.
        """
        infos = self.base.infos_of_step(ended, outputs)
        for monitor in self.inner_monitors:
            _monitor(monitor, raw_rewards, ended, infos)
        if self.changes_observations:
            for lane in ended.tolist():
                last = jax.tree.map(lambda leaf, lane=lane: leaf[lane].copy(), final_observation)
                infos[lane]["terminal_observation"] = last
        for monitor in self.outer_monitors:
            _monitor(monitor, rewards, ended, infos)
        return infos

    def _moments(self, raw: Any, convert: Any) -> Any:
        """`convert` of the running statistics of each array of the observation; None where it is not normalised."""
        env = self.normalize
        assert env is not None
        if isinstance(raw, dict):
            rms = env.obs_rms if env.norm_obs else {}
            return {name: convert(rms[name]) if name in rms else None for name in raw}
        return convert(env.obs_rms) if env.norm_obs else None


def _moments(rms: RunningMeanStd) -> Moments:
    return Moments(*(jnp.asarray(part, float) for part in (rms.mean, rms.var, rms.count)))


def _update(rms: RunningMeanStd, seen: Moments) -> None:
    """Add what a rollout saw, in float64."""
    mean, variance, count = (np.asarray(part, np.float64) for part in (seen.mean, seen.variance, seen.count))
    rms.update_from_moments(mean, variance, float(count))


def _monitor(monitor: VecMonitor, rewards: np.ndarray, ended: np.ndarray, infos: list[dict[str, Any]]) -> None:
    """What VecMonitor does in a step."""
    monitor.episode_returns += rewards
    monitor.episode_lengths += 1
    for lane in ended.tolist():
        episode = {
            "r": monitor.episode_returns[lane],
            "l": monitor.episode_lengths[lane],
            "t": round(time.time() - monitor.t_start, 6),
        }
        episode |= {name: infos[lane][name] for name in monitor.info_keywords}
        infos[lane] = {**infos[lane], "episode": episode}
        monitor.episode_count += 1
        monitor.episode_returns[lane] = 0
        monitor.episode_lengths[lane] = 0
        if monitor.results_writer:
            monitor.results_writer.write_row(episode)
