"""Stable-Baselines3's SAC, compiled."""

from __future__ import annotations

from typing import Any, Unpack

import stable_baselines3

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import Env, Policy, SACArguments
from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.stock.pytorch_simba import SimbaSACPolicy
from jaxenvs import learn


@compiled
class SAC(CompiledOffPolicyAlgorithm, stable_baselines3.SAC):
    """Soft actor-critic (SAC): `stable_baselines3.SAC`, compiled, with the same arguments and `engine`.

    Use it as the first choice for continuous actions (Box) when environment steps are expensive: it learns from a
    replay buffer, its policy explores by itself, and `ent_coef="auto"` tunes how much.
    """

    policy_aliases = stable_baselines3.SAC.policy_aliases | {"SimbaPolicy": SimbaSACPolicy}

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[SACArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)

    def _settings_now(self) -> learn.SAC:
        return learn.SAC(
            **self._shared_settings(),
            **entropy_settings(self),
            target_update_interval=self.target_update_interval,
        )


def entropy_settings(model: Any) -> dict[str, Any]:
    """Return the settings of SAC, TQC and CrossQ that other off-policy algorithms do not have."""
    is_learned = model.ent_coef_optimizer is not None
    return {
        "ent_coef": 1.0 if is_learned else float(model.ent_coef_tensor),
        "auto_ent_coef": is_learned,
        "target_entropy": float(model.target_entropy),
        "sde_sample_freq": model.sde_sample_freq,
        "use_sde_at_warmup": model.use_sde and model.use_sde_at_warmup,
    }
