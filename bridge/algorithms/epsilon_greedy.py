"""What DQN and QRDQN share: random actions by a schedule, and a target that follows by steps."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import Schedule

from bridge.algorithms.off_policy import CompiledOffPolicyAlgorithm
from bridge.engine.acting import Actor


class EpsilonGreedyAlgorithm(CompiledOffPolicyAlgorithm):
    """Mixed into an SB3 algorithm for Discrete actions, before it."""

    target_update_interval: int
    exploration_rate: float
    exploration_schedule: Schedule
    _n_calls: int

    def _count_step(self) -> None:
        self._n_calls += 1
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        self.logger.record("rollout/exploration_rate", self.exploration_rate)

    def _exploration_rates(self, progress_remaining: np.ndarray) -> np.ndarray:
        rates = np.array([self.exploration_schedule(each) for each in progress_remaining.tolist()])
        rates[0] = self.exploration_rate
        return rates

    def _calls_of_interval(self) -> int:
        return self._n_calls % max(self.target_update_interval // self.n_envs, 1)

    def _on_step(self) -> None:
        if (self._n_calls + 1) % max(self.target_update_interval // self.n_envs, 1) == 0:
            self._hand_over()  # SB3's moves the target where PyTorch has it
        super()._on_step()

    def _optimizers(self) -> torch.optim.Optimizer:
        return self.policy.optimizer

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """SB3's: all actions at once are random as often as `exploration_rate` says, unless `deterministic`.

        Args:
          observation, state, episode_start, deterministic: see CompiledAlgorithm.
        """
        # SB3's own would explore once more, and the programs, of the policy alone, do not.
        action, state = super().predict(observation, state, episode_start, deterministic=True)
        if deterministic or np.random.rand() >= self.exploration_rate:  # noqa: NPY002
            return action, state
        number = int(np.prod(action.shape))
        random = np.array([self.action_space.sample() for _ in range(number)], np.int64).reshape(action.shape)
        if isinstance(action, torch.Tensor):
            return torch.as_tensor(random, dtype=action.dtype, device=action.device), state
        if isinstance(action, jax.Array):
            return jax.device_put(random.astype(action.dtype), action.device), state
        return random, state

    def _act(self, actor: Actor, action_noise: ActionNoise | None, n_envs: int) -> tuple[np.ndarray, np.ndarray]:
        if np.random.rand() < self.exploration_rate:  # noqa: NPY002
            action = np.array([self.action_space.sample() for _ in range(n_envs)])
            return action, action
        _, action = actor.act(self._last_obs, None)
        action = np.array(action, np.int64)
        return action, action
