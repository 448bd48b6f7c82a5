"""The environments of a model, as a compiled rollout sees them: JaxVecEnv, and the wrappers that can be compiled."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize, VecTransposeImage

from bridge.translate.policies import NotCompilable
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.vec_env.programs import Outputs
from jaxenvs.learn import Moments, Normalizer

# Of a step in which nothing happened that an info tells of.
NOTHING = Outputs(*([] for _ in Outputs._fields))


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

        def convert(rms: RunningMeanStd | None, leaf: jax.ShapeDtypeStruct, now: np.ndarray) -> np.ndarray:
            if self.transpose is not None and len(leaf.shape) == 4 and now.shape != leaf.shape:
                now = np.moveaxis(now, 1, -1)
            return np.asarray(now, leaf.dtype if rms is None else np.float32).reshape(leaf.shape)

        return self._map_normalized(convert, self.base.programs.observation, seen)

    def as_given(self, observation: Any) -> Any:
        """Observations as the policy sees them, of any leading axes, in the dtypes in which the wrappers give them."""
        dtypes = jax.tree.unflatten(self.base.programs.observation_structure, self.base._observation_dtypes)
        return self._map_normalized(
            lambda rms, dtype, leaf: np.asarray(leaf, dtype if rms is None else np.float32), dtypes, observation
        )

    @property
    def changes_observations(self) -> bool:
        """Whether the policy sees other observations than the environments give."""
        return self.normalize is not None or self.transpose is not None

    @property
    def has_monitors(self) -> bool:
        """Whether some VecMonitor wants to hear of every step."""
        return bool(self.inner_monitors or self.outer_monitors)

    def normalizer(self) -> Normalizer | None:
        """The VecNormalize's state and settings; None if there is none."""
        env = self.normalize
        if env is None:
            return None
        return Normalizer(
            observation=self._map_normalized(lambda rms: None if rms is None else _moments(rms)),
            observation_seen=self._map_normalized(lambda rms: None if rms is None else _nothing(rms.mean.shape)),
            reward=_moments(env.ret_rms),
            reward_seen=_nothing(()),
            discounted_return=_array(env.returns),
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
            self._map_normalized(_add, normalizer.observation_seen)
            _add(env.ret_rms, normalizer.reward_seen)
        env.returns = np.array(normalizer.discounted_return, np.float64)
        env.old_obs = self.base.observation_of([np.array(leaf) for leaf in jax.tree.leaves(raw_observation)])
        env.old_reward = np.array(raw_reward)

    def infos(
        self,
        step: int,
        raw_rewards: np.ndarray,
        rewards: np.ndarray,
        ended: np.ndarray,
        outputs: Outputs,
        final_observation: Any,
    ) -> list[dict[str, Any]]:
        """The infos of one step of a rollout, as the outermost wrapper gives them.

        Args:
          step: its number.
          raw_rewards, rewards: before and after the VecNormalize, (n_steps, num_envs).
          ended: the numbers of the environments whose episode ended in this step.
          outputs: of all steps, as lists of leaves on the host.
          final_observation: of all steps, as the policy sees them, if it `changes_observations`.
        """
        has_info = ended.size or outputs.info
        infos = self.base.infos_of_step(ended, _at(outputs, step) if has_info else NOTHING)
        for monitor in self.inner_monitors:
            _monitor(monitor, raw_rewards[step], ended, infos)
        if self.changes_observations:
            for lane in ended.tolist():
                last = jax.tree.map(lambda leaf, lane=lane: leaf[step, lane].copy(), final_observation)
                infos[lane]["terminal_observation"] = last
        for monitor in self.outer_monitors:
            _monitor(monitor, rewards[step], ended, infos)
        return infos

    def infos_of_ends(self, dones: np.ndarray, outputs: Outputs, most: int) -> list[dict[str, Any]]:
        """The infos of the last steps of a rollout that ended an episode, in their order, without observations.

        Args:
          dones: (n_steps, num_envs).
          outputs: as for `infos`.
          most: of so many.
        """
        base = self.base
        lane = np.flatnonzero(dones.any(axis=0))
        last = len(dones) - 1 - dones[::-1, lane].argmax(axis=0)
        first_infos = base._rows([leaf[last, lane] for leaf in outputs.info], len(lane))
        for at, info in zip(lane.tolist(), first_infos):
            base.reset_infos[at] = info
        step, lane = dones.nonzero()
        ends = step[-most:], lane[-most:]
        infos = base._rows([leaf[ends] for leaf in outputs.final_info], len(ends[0]))
        seconds = round(time.time() - base._start_time, 6)
        (returns,), (lengths,) = outputs.episode_return, outputs.episode_length
        for info, r, length in zip(infos, returns[ends].tolist(), lengths[ends].tolist()):
            info["episode"] = {"r": r, "l": length, "t": seconds}
        return infos

    def _map_normalized(self, function: Any, *trees: Any) -> Any:
        """`function` of the RunningMeanStd of each array of the observation, None where it is not normalised, and of
        what is there in other pytrees of its structure."""
        env, raw = self.normalize, self.base.programs.observation
        if env is None or not env.norm_obs:
            statistics: Any = jax.tree.map(lambda _: None, raw)
        else:
            statistics = {name: env.obs_rms.get(name) for name in raw} if isinstance(raw, dict) else env.obs_rms
        return jax.tree.map(
            function, statistics, *trees, is_leaf=lambda node: node is None or isinstance(node, RunningMeanStd)
        )


def _at(outputs: Outputs, step: int) -> Outputs:
    return Outputs(*[[leaf[step] for leaf in part] for part in outputs])


def _array(numbers: Any) -> Any:
    """What `jnp.asarray(numbers, float)` is, in NumPy: outside of programs each operation of JAX costs dispatch."""
    return np.asarray(numbers, jax.dtypes.canonicalize_dtype(float))


def _moments(rms: RunningMeanStd) -> Moments:
    return Moments(_array(rms.mean), _array(rms.var), _array(rms.count))


def _nothing(shape: tuple[int, ...]) -> Moments:
    """`Moments.empty`."""
    return Moments(_array(np.zeros(shape)), _array(np.zeros(shape)), _array(0))


def _add(rms: RunningMeanStd | None, seen: Moments) -> None:
    """Add what a rollout saw, in float64."""
    if rms is not None:
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
