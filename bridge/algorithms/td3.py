"""TD3 and DDPG: Stable-Baselines3's, compiled."""

from __future__ import annotations

from typing import ClassVar

import stable_baselines3

from bridge.algorithms.common.compiled_algorithm import constructor_like
from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.engine.user_code.overrides import compiled
from jaxenvs import learn


@compiled
class TD3(CompiledOffPolicyAlgorithm, stable_baselines3.TD3):
    """`stable_baselines3.TD3` with the same arguments, and `engine`."""

    __init__ = constructor_like(CompiledOffPolicyAlgorithm, stable_baselines3.TD3)

    COUNTS_BEFORE_SAMPLING: ClassVar[bool] = True

    def _settings_now(self) -> learn.TD3:
        return learn.TD3(
            **self._shared_settings(),
            policy_delay=self.policy_delay,
            target_policy_noise=float(self.target_policy_noise),
            target_noise_clip=float(self.target_noise_clip),
        )


@compiled
class DDPG(TD3, stable_baselines3.DDPG):
    """`stable_baselines3.DDPG` with the same arguments, and `engine`."""

    __init__ = constructor_like(CompiledOffPolicyAlgorithm, stable_baselines3.DDPG)
