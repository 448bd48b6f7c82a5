"""Protocols for the parts of Stable-Baselines3's algorithms that the engine uses, private names included.

A release of SB3 may break them. mypy checks engine and algorithms against them. Private names of policies, noises and
wrappers are where these are translated. `learn` and `collect_rollouts` of on-policy and off-policy algorithms are
rewritten from SB3: compare them with each release.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import gymnasium
import numpy as np
import torch
from stable_baselines3.common import buffers
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import Schedule, TrainFreq
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as SB3sHerReplayBuffer

from jaxenvs.learn.off_policy.driver import Progress
from jaxenvs.learn.off_policy.settings import OffPolicySettings

Space = gymnasium.spaces.Space[Any]
# Environments of Gymnasium, and their wrappers, of any observations and actions.
AnyEnv = gymnasium.Env[Any, Any]
AnyVectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]
WrapperClass = type[gymnasium.Wrapper[Any, Any, Any, Any]]
Infos = list[dict[str, Any]]

# Only in later versions of SB3.
NStepReplayBuffer: type[buffers.ReplayBuffer] | None = getattr(buffers, "NStepReplayBuffer", None)
# bridge.ReplayBuffer, or bridge.HerReplayBuffer, replaces these: it has the same arrays, which can move to the device.
SB3S_BUFFERS = (None, buffers.ReplayBuffer, buffers.DictReplayBuffer, NStepReplayBuffer, SB3sHerReplayBuffer)


class Algorithm(Protocol):
    """The attributes and methods of SB3's and bridge's algorithms that the engine uses."""

    policy: Any
    env: VecEnv | None
    n_envs: int
    device: torch.device
    use_sde: bool
    sde_sample_freq: int
    observation_space: Space
    action_space: Space
    num_timesteps: int
    lr_schedule: Schedule
    ep_info_buffer: Any
    _last_obs: Any
    _last_episode_starts: Any
    _n_updates: int
    _total_timesteps: int
    _current_progress_remaining: float

    # bridge's.
    engine: str
    asked_device: str
    key: np.ndarray

    @property
    def logger(self) -> Logger: ...

    def _update_info_buffer(self, infos: Infos, dones: np.ndarray | None = None) -> None: ...
    def _current_plan(self, env: VecEnv | None) -> Any: ...
    def _record_compile_time(self) -> None: ...
    def _update_learning_rate(self, optimizers: list[torch.optim.Optimizer] | torch.optim.Optimizer) -> None: ...
    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None: ...
    def dump_logs(self) -> None: ...


class OnPolicy(Algorithm, Protocol):
    """An algorithm with a rollout buffer."""

    n_steps: int
    gamma: float
    gae_lambda: float
    rollout_buffer: RolloutBuffer

    # bridge's.
    MASKS: ClassVar[bool]
    _masks: bool
    _on_jax: Any

    def _steps_of_same_noise(self) -> int: ...


class OffPolicy(Algorithm, Protocol):
    """An algorithm with a replay buffer."""

    replay_buffer: Any
    action_noise: ActionNoise | None
    learning_starts: int
    gradient_steps: int
    _episode_num: int
    _last_original_obs: Any
    _vec_normalize_env: VecNormalize | None

    # bridge's.
    COUNTS_BEFORE_SAMPLING: ClassVar[bool]
    _step_of_iteration: int
    _settings_on_jax: tuple[OffPolicySettings, OffPolicySettings] | None
    _noise_on_jax: Any
    _iteration: int
    _steps_on_jax: int

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def _store_transition(
        self, replay_buffer: buffers.ReplayBuffer, buffer_action: np.ndarray, new_obs: Any, reward: np.ndarray,
        dones: np.ndarray, infos: Infos,
    ) -> None: ...  # fmt: skip
    def _on_step(self) -> None: ...
    def _count_step(self) -> None: ...
    def _exploration_rates(self, progress_remaining: np.ndarray) -> np.ndarray: ...
    @property
    def _frequency(self) -> TrainFreq: ...
    def _settings_now(self) -> OffPolicySettings: ...
    def _optimizers(self, plan: Any) -> list[torch.optim.Optimizer] | torch.optim.Optimizer: ...
    def _record(self, settings: Any, metrics: dict[str, float], num_before: int) -> None: ...
    def _progress(self) -> tuple[Progress, np.ndarray | None, np.ndarray]: ...
    def _write_progress(self, progress: Progress, action_noise: np.ndarray | None) -> None: ...
