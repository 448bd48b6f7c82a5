"""SerialVecEnv: Gymnasium environments in this process, as SB3's DummyVecEnv has them, stepped by a cheaper loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs

from bridge.host_env.episodes import Episodes, infos_of_step
from bridge.host_env.processes.worker_main import Lanes, set_attribute
from bridge.vec_env.argument_checks import lanes_of


class SerialVecEnv(DummyVecEnv):
    """Gymnasium environments stepped one after another in this process.

    A DummyVecEnv that takes less time: infos are copied only where there is something in them, observations once, and
    returns and lengths of episodes are counted for all lanes at once, not by a Monitor in each. The infos have
    `episode` all the same; where the environments are in a Monitor already, it is theirs.

    Every array that `reset` and `step` return is of its own, writable, never written to again. The info of a lane in
    which nothing happened may be the very dict of the step before, unless somebody wrote into it.

    Attributes:
      envs: the environments.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        """
        Args:
          env_fns: functions that make the environments, a new one each.

        Raises:
          ValueError: two functions returned the same environment.
        """
        super().__init__(list(env_fns))
        self._lanes = Lanes(self.envs)
        self._episodes = Episodes(self.num_envs, self._lanes.monitored)
        self._parts = [(key, array.shape, array.dtype) for key, array in self.buf_obs.items()]

    def reset(self) -> VecEnvObs:
        observations = self._new_observations()
        self.reset_infos = self._lanes.reset(self._seeds, self._options, observations)
        self._reset_seeds()
        self._reset_options()
        self._episodes.begin()
        return self._as_observation(observations)

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions of a step.

        Raises:
          ValueError: there is not one for each environment.
        """
        if len(actions) != self.num_envs:
            raise ValueError(
                f"actions must hold {self.num_envs} actions, one for each environment, got {len(actions)}."
            )
        super().step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards = self._new_observations(), np.empty(self.num_envs)
        terminated, truncated = np.empty(self.num_envs, bool), np.empty(self.num_envs, bool)
        try:
            told = self._lanes.step(self.actions, observations, rewards, terminated, truncated)
        except Exception as error:
            error.add_note(f"Environment {self._lanes.failed} raised this error.")
            raise
        dones, infos = infos_of_step(self._episodes, rewards, terminated, truncated, told, self.reset_infos)
        return self._as_observation(observations), rewards.astype(np.float32), dones, infos

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """As SB3's. A numeric parameter of a JAX environment is changed through all wrappers."""
        for env in self._get_target_envs(indices):
            set_attribute(env, attr_name, value)

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """As SB3's, and always True for Monitor, whose `episode` every info of an ended episode has."""
        if issubclass(wrapper_class, Monitor):
            return [True for _ in lanes_of(indices, self.num_envs)]
        return super().env_is_wrapped(wrapper_class, indices)

    def _as_observation(self, observations: dict[Any, np.ndarray]) -> VecEnvObs:
        plain = observations.get(None)  # as SB3's function does it, in less time
        return dict_to_obs(self.observation_space, observations) if plain is None else plain

    def _new_observations(self) -> dict[Any, np.ndarray]:
        return {key: np.empty(shape, dtype) for key, shape, dtype in self._parts}
