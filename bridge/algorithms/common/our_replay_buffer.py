"""Mixin that creates, saves and loads bridge's replay buffers instead of SB3's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer as SB3sReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as SB3sHerReplayBuffer

from bridge.algorithms.common.compiled_algorithm import SavePath
from bridge.host_env.step_infos import StepInfos
from bridge.replay import HerReplayBuffer, ReplayBuffer
from bridge.replay.rows import Rows, as_sb3s
from bridge.sb3 import SB3S_BUFFERS, NStepReplayBuffer


class WithOurReplayBuffer(OffPolicyAlgorithm):
    """Mixin for off-policy algorithms that use bridge's replay buffers. It is placed before the SB3 class."""

    engine: str
    _last_obs: np.ndarray | dict[str, np.ndarray]  # None only before the first reset

    def _setup_model(self) -> None:
        # The buffer is created before SB3 would create one. `replay_buffer_class` still names SB3's class, so that a
        # zip does not depend on this package. SB3 refuses a HerReplayBuffer without environments, so that case is left
        # to it.
        is_hindsight = self.replay_buffer_class is SB3sHerReplayBuffer
        knows_class = self.replay_buffer_class in SB3S_BUFFERS and (self.env is not None or not is_hindsight)
        if self.engine != "torch" and self.replay_buffer is None and knows_class:
            arguments: dict[str, object] = {}
            ours: Callable[..., SB3sReplayBuffer] = ReplayBuffer
            if is_hindsight:
                ours, arguments = HerReplayBuffer, {"env": self.env}
            if self.replay_buffer_class is None and getattr(self, "n_steps", 1) > 1:
                self.replay_buffer_kwargs.update(n_steps=self.n_steps, gamma=self.gamma)  # as SB3 does
            elif self.replay_buffer_class is not None and self.replay_buffer_class is NStepReplayBuffer:
                parameters = inspect.signature(NStepReplayBuffer).parameters
                arguments = {name: parameters[name].default for name in ("n_steps", "gamma")}
            self.replay_buffer = ours(
                self.buffer_size,
                self.observation_space,
                self.action_space,
                device=self.device,
                n_envs=self.n_envs,
                optimize_memory_usage=self.optimize_memory_usage,
                **{**arguments, **self.replay_buffer_kwargs},
            )
        super()._setup_model()

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._require_buffer_of_model()
        last_obs = self._last_obs
        given = super()._setup_learn(*args, **kwargs)
        if self._last_obs is not last_obs and isinstance(self.replay_buffer, Rows):
            self.replay_buffer.mark_reset()  # SB3 has reset the environments
        return given

    def _require_buffer_of_model(self) -> None:
        buffer = self.replay_buffer
        expected = self.n_envs, get_obs_shape(self.observation_space), get_action_dim(self.action_space)
        if isinstance(buffer, Rows) and (found := (buffer.n_envs, buffer.obs_shape, buffer.action_dim)) != expected:
            raise ValueError(
                "replay_buffer must have the model's number of environments, shape of observations and size of "
                f"actions, {expected}, got {found}: load or make one of the same environments."
            )

    def save_replay_buffer(self, path: SavePath) -> None:
        """Save the replay buffer as a pickle, as SB3 does.

        SB3 can load it where jaxenvs is not installed, unless the buffer has priorities or is in files.

        Args:
          path: the file.
        """
        assert self.replay_buffer is not None, "The replay buffer is not defined"
        save_to_pkl(path, as_sb3s(self.replay_buffer), self.verbose)

    def load_replay_buffer(self, path: SavePath, truncate_last_traj: bool = True) -> None:
        """Load a replay buffer as SB3 does. A buffer of SB3's class becomes one of ours with the same arrays.

        Args:
          path: the file.
          truncate_last_traj: for a HerReplayBuffer, end the unfinished episodes, as SB3 does.
        """
        super().load_replay_buffer(path, truncate_last_traj)
        self._take_buffer()

    def save(self, path: SavePath, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None) -> None:
        """Save the model as SB3 does. SB3 can load it where jaxenvs is not installed, also with the replay buffer."""
        buffer, include = self.replay_buffer, None if include is None else list(include)
        try:
            if buffer is not None and include is not None and "replay_buffer" in include:
                self.replay_buffer = as_sb3s(buffer)
            super().save(path, exclude, include)
        finally:
            self.replay_buffer = buffer

    @classmethod
    def load(cls, path: SavePath, *args: Any, **kwargs: Any) -> Self:
        """Load a model as SB3 does. A replay buffer of the zip becomes one of ours, and one that is passed stays."""
        given = inspect.signature(super().load).bind(path, *args, **kwargs).arguments
        model = super().load(path, *args, **kwargs)
        if "replay_buffer" not in {**(given.get("custom_objects") or {}), **given.get("kwargs", {})}:
            model._take_buffer()
        return model

    def _take_buffer(self) -> None:
        """Put a buffer of ours, with the same arrays, where one of SB3's class was loaded."""
        if self.engine != "torch" and type(self.replay_buffer) in SB3S_BUFFERS:
            ours: Any = HerReplayBuffer if type(self.replay_buffer) is SB3sHerReplayBuffer else ReplayBuffer
            self.replay_buffer = ours.taking(self.replay_buffer)


def add_quickly(
    buffer: Any, obs: object, next_obs: object, action: object, reward: object, dones: object, infos: object
) -> None:
    """Add a step in which no episode ended, as SB3's `_store_transition`, without another copy and loop."""
    if isinstance(next_obs, dict):
        next_obs = dict(next_obs)  # whose entries SB3's `add` may reshape
    if type(infos) is StepInfos and not infos.ended and not getattr(buffer, "copy_info_dict", False):
        infos = [{}] * len(infos)  # they are created when they are read, and only infos of ends matter
    buffer.add(obs, next_obs, action, reward, dones, infos)
