"""Stable-Baselines3's DQN, compiled."""

from __future__ import annotations

from typing import Unpack

import stable_baselines3

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import DQNArguments, Env, Policy
from bridge.algorithms.common.epsilon_greedy import EpsilonGreedyAlgorithm
from jaxenvs import learn


@compiled
class DQN(EpsilonGreedyAlgorithm, stable_baselines3.DQN):
    """Deep Q-network (DQN): `stable_baselines3.DQN`, compiled, with the same arguments and `engine`.

    Use it for Discrete actions when environment steps are expensive: it learns from a replay buffer and explores
    epsilon-greedily. QRDQN is its distributional variant.
    """

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[DQNArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)

    def _settings_now(self) -> learn.DQN:
        return learn.DQN(
            **self._shared_settings(),
            target_update_interval=self.target_update_interval,
            max_grad_norm=float(self.max_grad_norm),
        )
