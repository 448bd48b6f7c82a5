"""Base class of DQN and QRDQN: epsilon-greedy exploration, and a target network that is updated every few steps."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import torch
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.type_aliases import Schedule

from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.engine.acting import Actor
from bridge.engine.plan import Plan


class EpsilonGreedyAlgorithm(CompiledOffPolicyAlgorithm):
    """Base class of epsilon-greedy algorithms for Discrete actions. It is mixed in before the SB3 class."""

    target_update_interval: int
    exploration_rate: float
    exploration_schedule: Schedule
    _n_calls: int

    def _count_step(self) -> None:
        self._n_calls += 1
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        self.logger.record("rollout/exploration_rate", self.exploration_rate)

    def _exploration_rates(self, progress_remaining: np.ndarray) -> np.ndarray:
        # As in SB3, the schedule is not asked about the first: it may divide by an exploration_fraction of 0 there.
        return np.array([self.exploration_rate, *map(self.exploration_schedule, progress_remaining[1:].tolist())])

    def _calls_of_interval(self) -> int:
        return self._n_calls % max(self.target_update_interval // self.n_envs, 1)

    def _optimizers(self, plan: Plan) -> torch.optim.Optimizer:
        return self.policy.optimizer

    def predict(
        self, observation: Any, state: object = None, episode_start: object = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        """Return the actions for an observation, and `state`, as SB3's `predict`: with random actions while exploring.

        With probability `exploration_rate`, all actions of a batch are random: one draw from NumPy's generator decides
        for all.

        Args:
          observation: one observation or a batch, as SB3 takes it; or a tensor or a JAX array, or a dict of these. The
            actions then have the same type and device.
          state, episode_start: SB3's, which only recurrent policies use.
          deterministic: return the actions with the largest values, without random ones.

        Raises:
          ValueError: a tensor or a JAX array does not have the shape of the observations.
        """
        if deterministic or np.random.rand() >= self.exploration_rate:  # noqa: NPY002
            return self._predict(observation, state, episode_start, deterministic)
        # As in SB3, the network does not run for random actions: it may be user code.
        is_batch = self.policy.is_vectorized_observation(observation)
        first = next(iter(observation.values())) if isinstance(observation, dict) else observation
        lead = (len(first),) if is_batch else ()
        random = np.array([self.action_space.sample() for _ in range(math.prod(lead))], np.int64).reshape(lead)
        if isinstance(first, torch.Tensor):
            return torch.as_tensor(random, device=first.device), state
        if isinstance(first, jax.Array):
            return jax.device_put(random.astype(np.int32), first.device), state
        return random, state

    def _predict_by_sb3(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool, **further: object
    ) -> tuple[Any, object]:
        # SB3's `predict` of the algorithm would explore a second time.
        return self.policy.predict(observation, state, episode_start, deterministic, **further)

    def _act(self, actor: Actor, action_noise: ActionNoise | None, n_envs: int) -> tuple[np.ndarray, np.ndarray]:
        if np.random.rand() < self.exploration_rate:  # noqa: NPY002
            action = np.array([self.action_space.sample() for _ in range(n_envs)])
            return action, action
        _, action = actor.act(self._last_obs, None)
        action = np.array(action, np.int64)
        return action, action
