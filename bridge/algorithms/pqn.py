"""PQN, compiled."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import Env, Policy, PQNArguments
from bridge.algorithms.common.on_policy_algorithm import CompiledOnPolicyAlgorithm
from bridge.stock import pytorch_pqn as stock
from jaxenvs import learn
from jaxenvs.learn import OnPolicySettings


@compiled
class PQN(CompiledOnPolicyAlgorithm, stock.PQN):
    """Parallelised Q-learning (PQN; Gallici et al. 2025, https://arxiv.org/abs/2407.04811), with SB3's arguments.

    Use it for Discrete actions when environment steps are cheap: it learns from rollouts of many environments, without
    a replay buffer and without a target network. Its policies are DQN's with layer norm, and act epsilon-greedily.
    Stable-Baselines3 has no such algorithm.
    """

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[PQNArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)

    def _settings(self, progress: float, learning_rate: float) -> learn.PQN:
        return learn.PQN(
            **self._shared_settings(),
            learning_rate=learning_rate,
            batch_size=self.batch_size,
            n_epochs=self.n_epochs,
            exploration_rate=self.exploration_rate,
        )

    def _settings_ahead(self, total_timesteps: int, count: int) -> list[OnPolicySettings]:
        steps, rates = self.n_steps * self.n_envs, [self.exploration_rate]
        for i in range(1, count):  # a rollout explores as the schedule says after the one before it
            rates.append(
                self.exploration_schedule(1.0 - float(self.num_timesteps + i * steps) / float(total_timesteps))
            )
        ahead = super()._settings_ahead(total_timesteps, count)
        return [settings.replace(exploration_rate=rate) for settings, rate in zip(ahead, rates, strict=True)]

    def _record(self, settings: learn.PQN, metrics: dict[str, float]) -> None:
        self._n_updates += int(metrics.pop("epochs"))
        self.logger.record("rollout/exploration_rate", self.exploration_rate)
        for name, value in metrics.items():
            self.logger.record(f"train/{name}", np.float64(value) if name in settings.STATISTICS else value)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
