"""SAC: Stable-Baselines3's, compiled."""

from __future__ import annotations

import stable_baselines3

from bridge.algorithms.base import constructor_like
from bridge.algorithms.off_policy import CompiledOffPolicyAlgorithm
from bridge.engine.trust import compiled
from jaxenvs import learn


@compiled
class SAC(CompiledOffPolicyAlgorithm, stable_baselines3.SAC):
    """`stable_baselines3.SAC` with the same arguments, and `engine`."""

    __init__ = constructor_like(CompiledOffPolicyAlgorithm, stable_baselines3.SAC)

    def _settings_now(self) -> learn.SAC:
        is_learned = self.ent_coef_optimizer is not None
        return learn.SAC(
            **self._shared_settings(),
            ent_coef=1.0 if is_learned else float(self.ent_coef_tensor),
            auto_ent_coef=is_learned,
            target_entropy=float(self.target_entropy),
            target_update_interval=self.target_update_interval,
            sde_sample_freq=self.sde_sample_freq,
            use_sde_at_warmup=self.use_sde and self.use_sde_at_warmup,
        )
