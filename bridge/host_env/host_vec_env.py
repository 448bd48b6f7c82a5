"""HostVecEnv: the base class of VecEnvs around a vector environment that steps all its environments at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from bridge.host_env.episodes import EpisodeStatistics
from bridge.sb3 import Infos, Space
from bridge.vec_env.actions import ActionChecker
from bridge.vec_env.argument_checks import env_indices_of
from bridge.vec_env.base import MAX_IMAGES, BatchedVecEnv
from jaxenvs.arguments import instance


class HostVecEnv(BatchedVecEnv):
    """Base class of VecEnvs around a vector environment: seeds, checked actions, call order, and episode statistics.

    A step that fails leaves the vector environment in an unknown state: `reset` starts anew.
    """

    def __init__(
        self,
        source: Any,
        num_envs: int,
        observation_space: Space,
        action_space: Space,
        monitored: bool = False,
    ) -> None:
        """Wrap a vector environment.

        Args:
          source: the object with the attributes of the environments, and `render`.
          num_envs: the number of environments.
          observation_space, action_space: the spaces of one environment.
          monitored: True if the environments write `episode` into their infos themselves, as in a Monitor.
        """
        self._source = source
        self._check_action = ActionChecker(action_space, num_envs, action_space.dtype)
        self._episodes = EpisodeStatistics(num_envs, monitored)
        self._is_reset = self._is_stepping = False
        super().__init__(num_envs, observation_space, action_space)

    def reset(self, *args: object, **kwargs: object) -> VecEnvObs:
        """Start an episode in every environment. If a step is under way, wait for it and discard its result.

        Raises:
          TypeError: arguments were given; SB3's `reset` takes none.
        """
        if args or kwargs:
            raise TypeError("reset takes no arguments, as in SB3: call seed or set_options before it.")
        is_stepping, self._is_stepping, self._is_reset = self._is_stepping, False, False
        if is_stepping:
            self._finish_step()
        observation: VecEnvObs
        observation, self.reset_infos = self._reset_all()
        self._reset_seeds()
        self._reset_options()
        self._episodes.begin()
        self._is_reset = True
        return observation

    def step_async(self, actions: object) -> None:
        """Start a step of all environments.

        Args:
          actions: (num_envs, *shape of an action), an array or lists.

        Raises:
          ValueError, TypeError: an action has the wrong shape, dtype or range, or is NaN. No environment was stepped.
          RuntimeError: `reset` was not called, or a step is already under way.
        """
        if self._is_stepping:
            raise RuntimeError("step_async was called again before step_wait.")
        self._require_reset()
        actions = self._check_action(actions)
        self._is_reset = False  # until the step is done: if it fails, there is no state
        self._begin_step(actions)
        self._is_stepping = True

    def step_wait(self) -> VecEnvStepReturn:
        """Return observations, rewards float32 (num_envs,), dones bool (num_envs,), and infos of the step."""
        if not self._is_stepping:
            raise RuntimeError("step_wait was called without step_async.")
        self._is_stepping = False
        result = self._finish_step()
        self._is_reset = True
        return result

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of the vector environment, once for each index, as all environments share it.

        Raises:
          AttributeError: there is no such attribute.
          TypeError: `attr_name` is not a str.
          ValueError: an index is out of range.
        """
        instance("attr_name", attr_name, str, "a str")
        count = len(env_indices_of(indices, self._source.num_envs))
        if attr_name == "render_mode":  # VecEnv reads it, and it is optional
            return [getattr(self._source, attr_name, None)] * count
        return [getattr(self._source, attr_name)] * count

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the vector environment, for all environments.

        Raises:
          AttributeError: there is no such attribute.
          TypeError: `attr_name` is not a str.
          ValueError: `indices` does not select all environments.
        """
        self.get_attr(attr_name)
        self._require_all(indices, f"has one {attr_name}")
        setattr(self._source, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[Any]:
        """Raise AttributeError: there are no separate environments whose method could be called."""
        raise AttributeError(f"{self._source} has no single environments whose {method_name} could be called.")

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return pictures of the first environments, at most MAX_IMAGES (16), each uint8 (height, width, 3)."""
        pictures = self._source.render() if self.render_mode is not None else None
        return [None] * self.num_envs if pictures is None else list(pictures)[:MAX_IMAGES]

    def _require_reset(self) -> None:
        if not self._is_reset:
            raise RuntimeError(
                "Call reset() first: the environments have not been reset, or a failed step lost their state."
            )

    def _require_all(self, indices: VecEnvIndices, what: str) -> list[int]:
        """Return the indices of all environments, if `indices` selects all of them, else raise ValueError."""
        env_indices = env_indices_of(indices, self.num_envs)
        if len(set(env_indices)) < self.num_envs:
            raise ValueError(
                f"indices must be None, because {self._source} {what} for all environments, got {env_indices}."
            )
        return env_indices

    @abstractmethod
    def _reset_all(self) -> tuple[Any, Infos]:
        """Reset all environments with `self._seeds` and `self._options`; return their observations and infos."""

    @abstractmethod
    def _begin_step(self, actions: np.ndarray) -> None:
        """Start a step, or remember the actions for `_finish_step`."""

    @abstractmethod
    def _finish_step(self) -> VecEnvStepReturn:
        """Wait for the step that `_begin_step` started, and return the result of `step_wait`."""
