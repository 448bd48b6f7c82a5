"""What the engine uses of Stable-Baselines3's algorithms and buffers, private names too: a release may break it here.

mypy holds engine and algorithms to these Protocols. Private names of policies, noises and wrappers stand where these
are translated. `learn` and `collect_rollouts` of both families are SB3's, rewritten: compare them with each release.
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
Infos = list[dict[str, Any]]

# Of later versions of SB3.
NStepReplayBuffer: Any = getattr(buffers, "NStepReplayBuffer", None)
# In the place of which bridge.ReplayBuffer, or bridge.HerReplayBuffer, holds the same in less memory, and gives it
# faster.
SB3S_BUFFERS = (None, buffers.ReplayBuffer, buffers.DictReplayBuffer, NStepReplayBuffer, SB3sHerReplayBuffer)


class Algorithm(Protocol):
    """What the engine uses of an SB3 algorithm, and of ours."""

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

    # Ours.
    engine: str
    key: np.ndarray

    @property
    def logger(self) -> Logger: ...

    def _update_info_buffer(self, infos: Infos, dones: np.ndarray | None = None) -> None: ...
    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None: ...
    def dump_logs(self) -> None: ...


class OnPolicy(Algorithm, Protocol):
    """An algorithm with a rollout buffer."""

    n_steps: int
    gamma: float
    gae_lambda: float
    rollout_buffer: RolloutBuffer

    # Ours.
    MASKS: ClassVar[bool]
    SHOWS_ROLLOUT_END: ClassVar[bool]
    _masks: bool

    def _steps_of_same_noise(self) -> int: ...


class OffPolicy(Algorithm, Protocol):
    """An algorithm with a replay buffer."""

    replay_buffer: Any
    action_noise: ActionNoise | None
    learning_starts: int
    _episode_num: int
    _last_original_obs: Any
    _vec_normalize_env: VecNormalize | None

    # Ours.
    _step_of_iteration: int
    _episodes_before_iteration: int

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def _store_transition(
        self, replay_buffer: Any, buffer_action: np.ndarray, new_obs: Any, reward: np.ndarray, dones: np.ndarray,
        infos: Any,
    ) -> None: ...  # fmt: skip
    def _on_step(self) -> None: ...
    def _count_step(self) -> None: ...
    def _exploration_rates(self, progress_remaining: np.ndarray) -> np.ndarray: ...
    @property
    def _frequency(self) -> TrainFreq: ...
    def _settings_now(self) -> OffPolicySettings: ...
    def _progress(self) -> tuple[Progress, np.ndarray | None, np.ndarray]: ...
    def _leave_progress(self, progress: Progress, action_noise: np.ndarray | None) -> None: ...
