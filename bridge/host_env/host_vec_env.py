"""HostVecEnv: what the VecEnvs over environments that step themselves, all lanes at once, have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from bridge.host_env.episodes import Episodes
from bridge.sb3 import Infos, Space
from bridge.vec_env.actions import ActionChecker
from bridge.vec_env.argument_checks import lanes_of
from bridge.vec_env.base import MAX_IMAGES, AllLanesVecEnv
from jaxenvs.arguments import instance


class HostVecEnv(AllLanesVecEnv):
    """Seeds, checked actions, calls in order, and the episodes, for a source that steps all its lanes at once.

    A step that fails leaves the source in no state one knows: `reset` starts anew.
    """

    def __init__(
        self,
        source: Any,
        num_envs: int,
        observation_space: Space,
        action_space: Space,
        monitored: bool = False,
    ) -> None:
        """
        Args:
          source: what has the attributes of the lanes, and `render`.
          observation_space, action_space: of one lane.
          monitored: as that of Episodes.

        Raises:
          TypeError: Stable-Baselines3 has no policies for these actions.
        """
        self._source = source
        self._check_action = ActionChecker(action_space, num_envs, action_space.dtype)
        self._episodes = Episodes(num_envs, monitored)
        self._is_reset = self._is_stepping = False
        super().__init__(num_envs, observation_space, action_space)

    @property
    def t_start(self) -> float:
        """The time from which `episode["t"]` counts, as VecMonitor's."""
        return self._episodes.t_start

    def reset(self, *args: Any, **kwargs: Any) -> VecEnvObs:
        """Start an episode in every lane. A step under way is waited for, and forgotten.

        Raises:
          TypeError: there are arguments, which SB3's `reset` does not take.
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

    def step_async(self, actions: Any) -> None:
        """Start a step of all lanes with their actions.

        Args:
          actions: (num_envs, *shape of an action); lists too.

        Raises:
          ValueError, TypeError: an action has the wrong shape, dtype or range, or is NaN. Nothing was stepped.
          RuntimeError: there was no reset, or there is a step under way.
        """
        if self._is_stepping:
            raise RuntimeError("step_async was called again before step_wait.")
        if not self._is_reset:
            raise RuntimeError(
                "Call reset() first: the environments have not been reset, or a failed step lost their state."
            )
        actions = self._check_action(actions)
        self._is_reset = False  # until the step is done: one that fails leaves no state
        self._begin_step(actions)
        self._is_stepping = True

    def step_wait(self) -> VecEnvStepReturn:
        """Observations, rewards float32 (num_envs,), dones bool (num_envs,), and infos of the step."""
        if not self._is_stepping:
            raise RuntimeError("step_wait was called without step_async.")
        self._is_stepping = False
        result = self._finish_step()
        self._is_reset = True
        return result

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the environment, which is that of every lane.

        Raises:
          AttributeError: there is no such attribute.
          TypeError: a name is a str.
          ValueError: there are no such lanes.
        """
        instance("attr_name", attr_name, str, "a str")
        lanes = lanes_of(indices, self._source.num_envs)
        if attr_name == "render_mode":  # which VecEnv asks for, and nobody must have
            return [getattr(self._source, attr_name, None)] * len(lanes)
        return [getattr(self._source, attr_name)] * len(lanes)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the environment, for all lanes.

        Raises:
          AttributeError: there is no such attribute.
          TypeError: a name is a str.
          ValueError: `indices` are not all lanes.
        """
        self.get_attr(attr_name)
        self._all_lanes(indices, f"has one {attr_name}")
        setattr(self._source, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Refuse: lanes have no environments of their own to call.

        Raises:
          AttributeError: always. Lanes have no environments of their own.
        """
        raise AttributeError(f"{self._source} has no single environments whose {method_name} could be called.")

    def get_images(self) -> Sequence[np.ndarray | None]:
        """A picture of each of the first lanes, uint8 (height, width, 3); of at most MAX_IMAGES."""
        pictures = self._source.render() if self.render_mode is not None else None
        return [None] * self.num_envs if pictures is None else list(pictures)[:MAX_IMAGES]

    def _all_lanes(self, indices: VecEnvIndices, what: str) -> list[int]:
        """The numbers of all lanes, where nothing less can be meant.

        Raises:
          ValueError: `indices` are not all lanes.
        """
        lanes = lanes_of(indices, self.num_envs)
        if len(set(lanes)) < self.num_envs:
            raise ValueError(f"indices must be None, because {self._source} {what} for all environments, got {lanes}.")
        return lanes

    @abstractmethod
    def _reset_all(self) -> tuple[Any, Infos]:
        """Reset all lanes, by `self._seeds` and `self._options`, to their observations and infos."""

    @abstractmethod
    def _begin_step(self, actions: np.ndarray) -> None:
        """Start a step, or remember the actions for `_finish_step`."""

    @abstractmethod
    def _finish_step(self) -> VecEnvStepReturn:
        """What `step_wait` gives."""
