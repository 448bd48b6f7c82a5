"""SerialVecEnv: Gymnasium environments in this process, like SB3's DummyVecEnv, with a faster loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs

from bridge.host_env.episodes import EpisodeStatistics, infos_of_step
from bridge.host_env.processes.worker_main import Key, SerialEnvs, set_attribute
from bridge.sb3 import AnyEnv, WrapperClass
from bridge.vec_env.argument_checks import env_indices_of, require_options


class SerialVecEnv(DummyVecEnv):
    """Vectorized environment that steps Gymnasium environments one after another in this process.

    Use it for environments that take less time than a process needs to wake up. It is a DummyVecEnv that copies infos
    only if they are not empty, copies observations once, and counts returns and lengths of episodes for all
    environments at once instead of in a Monitor around each. Infos still have `episode`; if the environments are
    already in a Monitor, it is Monitor's.

    `reset` and `step` return new arrays, which are writable and never overwritten. If an environment has no info and
    its episode continues, its info may be the dict of the previous step, unless your code wrote into it.

    Attributes:
      envs: the environments.
    """

    buf_obs: Any

    def __init__(self, env_fns: Sequence[Callable[[], AnyEnv]]) -> None:
        """Make the environments.

        Args:
          env_fns: functions that each make and return a new environment.

        Raises:
          ValueError: two functions returned the same environment.
        """
        self._episodes = EpisodeStatistics(len(env_fns))
        self._has_begun = False
        super().__init__(list(env_fns))
        self._parts = [(key, array.shape, array.dtype) for key, array in self.buf_obs.items()]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, num_envs={self.num_envs}>"

    @property
    def envs(self) -> list[AnyEnv]:
        """The environments. A list that is assigned is stepped from then on."""
        return self._serial_envs.envs

    @envs.setter
    def envs(self, envs: list[AnyEnv]) -> None:
        self._serial_envs = SerialEnvs(envs)
        self._episodes.monitored = self._serial_envs.monitored

    @property
    def buf_rews(self) -> np.ndarray:
        """The rewards of the last step, as the environments gave them: callers may write into what `step` returned."""
        return self._rewards.astype(np.float32)

    @buf_rews.setter
    def buf_rews(self, rewards: np.ndarray) -> None:
        self._rewards = rewards

    def reset(self) -> VecEnvObs:
        require_options(self._options, self.num_envs)
        self.buf_obs = observations = self._new_observations()
        self.reset_infos = self._serial_envs.reset(self._seeds, self._options, observations)
        self._reset_seeds()
        self._reset_options()
        self._episodes.begin()
        self._has_begun = True
        return self._as_observation(observations)

    def step_async(self, actions: np.ndarray) -> None:
        """Store the actions of a step.

        Raises:
          ValueError: their number is not the number of environments.
          RuntimeError: there was no reset before, and no Monitor that would raise this error.
        """
        if not (self._has_begun or self._episodes.monitored):
            raise RuntimeError("Call reset() first: the environments have no episode to step.")
        if len(actions) != self.num_envs:
            raise ValueError(
                f"actions must hold {self.num_envs} actions, one for each environment, got {len(actions)}."
            )
        super().step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards = self._new_observations(), np.empty(self.num_envs)
        terminated, truncated = np.empty(self.num_envs, bool), np.empty(self.num_envs, bool)
        try:
            report = self._serial_envs.step(self.actions, observations, rewards, terminated, truncated)
        except Exception as error:
            error.add_note(f"Environment {self._serial_envs.failed} raised this error.")
            raise
        dones, infos = infos_of_step(self._episodes, rewards, terminated, truncated, report, self.reset_infos)
        # One assignment to several attributes takes three times as long as several.
        self.buf_obs = observations
        self._rewards = rewards
        self.buf_dones = dones
        self.buf_infos = infos
        return self._as_observation(observations), rewards.astype(np.float32), dones, infos

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Set an attribute of each environment, in which no Monitor of ours would take it, as it does in SB3.

        A numeric parameter of a JAX environment is changed through all wrappers.
        """
        for env in self._get_target_envs(indices):
            set_attribute(env, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """Call a method of each environment, as SB3 does."""
        env_indices = env_indices_of(indices, self.num_envs)
        results: list[Any] = super().env_method(method_name, *args, indices=env_indices, **kwargs)
        if method_name == "reset":
            self._has_begun = True
            self._episodes.begin(env_indices)
        return results

    def env_is_wrapped(self, wrapper_class: WrapperClass, indices: VecEnvIndices = None) -> list[bool]:
        """Return SB3's result, but always True for Monitor, because the infos of ended episodes have its `episode`."""
        if issubclass(wrapper_class, Monitor):
            return [True for _ in env_indices_of(indices, self.num_envs)]
        return super().env_is_wrapped(wrapper_class, indices)

    def _as_observation(self, observations: dict[Key, np.ndarray]) -> VecEnvObs:
        plain = observations.get(None)  # a plain observation does not need SB3's slower function
        return dict_to_obs(self.observation_space, observations) if plain is None else plain

    def _new_observations(self) -> dict[Key, np.ndarray]:
        return {key: np.empty(shape, dtype) for key, shape, dtype in self._parts}
