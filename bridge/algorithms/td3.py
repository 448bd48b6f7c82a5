"""Stable-Baselines3's TD3 and DDPG, compiled."""

from __future__ import annotations

from typing import ClassVar, Unpack

import stable_baselines3

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import DDPGArguments, Env, Policy, TD3Arguments
from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.stock.pytorch_simba import SimbaTD3Policy
from jaxenvs import learn


@compiled
class TD3(CompiledOffPolicyAlgorithm, stable_baselines3.TD3):
    """Twin-delayed DDPG (TD3): `stable_baselines3.TD3`, compiled, with the same arguments and `engine`.

    Use it for continuous actions (Box) when you want a deterministic policy. Pass an `action_noise`: without one, TD3
    explores only during `learning_starts`. SAC explores by itself.
    """

    COUNTS_BEFORE_SAMPLING: ClassVar[bool] = True

    policy_aliases = stable_baselines3.TD3.policy_aliases | {"SimbaPolicy": SimbaTD3Policy}

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[TD3Arguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)

    def _settings_now(self) -> learn.TD3:
        return learn.TD3(
            **self._shared_settings(),
            policy_delay=self.policy_delay,
            target_policy_noise=float(self.target_policy_noise),
            target_noise_clip=float(self.target_noise_clip),
        )


@compiled
class DDPG(TD3, stable_baselines3.DDPG):
    """Deep deterministic policy gradient (DDPG): `stable_baselines3.DDPG`, compiled, with the same arguments and
    `engine`.

    Use it to compare with published results, for continuous actions (Box): it is TD3 with one critic, without delayed
    updates and without target noise. TD3 is more stable.
    """

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[DDPGArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)
