"""Stable-Baselines3's A2C, compiled."""

from __future__ import annotations

from typing import Unpack

import stable_baselines3

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import A2CArguments, Env, Policy
from bridge.algorithms.common.on_policy_algorithm import CompiledOnPolicyAlgorithm
from bridge.stock.pytorch_simba import SimbaActorCriticPolicy
from jaxenvs import learn


@compiled
class A2C(CompiledOnPolicyAlgorithm, stable_baselines3.A2C):
    """Advantage actor-critic (A2C): `stable_baselines3.A2C`, compiled, with the same arguments and `engine`.

    Use it for cheap environments, and as a simple baseline: it takes one gradient step for each short rollout
    (`n_steps=5`), so an update costs little. PPO usually needs fewer environment steps.
    """

    policy_aliases = stable_baselines3.A2C.policy_aliases | {"SimbaPolicy": SimbaActorCriticPolicy}

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[A2CArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)

    def _settings(self, progress: float, learning_rate: float) -> learn.A2C:
        return learn.A2C(
            **self._shared_settings(),
            learning_rate=learning_rate,
            normalize_advantage=self.normalize_advantage,
        )

    def _record(self, settings: learn.A2C, metrics: dict[str, float]) -> None:
        self._n_updates += 1
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, value in metrics.items():
            self.logger.record(f"train/{name}", value)
        self._record_std()
