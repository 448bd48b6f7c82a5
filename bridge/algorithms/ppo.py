"""Stable-Baselines3's PPO, compiled, and what sb3-contrib's variants of PPO share with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

import numpy as np
import stable_baselines3

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import Env, Policy, PPOArguments
from bridge.algorithms.common.on_policy_algorithm import CompiledOnPolicyAlgorithm
from bridge.stock.pytorch_simba import SimbaActorCriticPolicy
from jaxenvs import learn

# The types of the means over minibatches that SB3 logs. It logs other numbers as floats.
LOGGED_AS: dict[str, Callable[[float], float | np.floating]] = {
    "approx_kl": np.float32,
    **dict.fromkeys(("clip_fraction", "entropy_loss", "policy_gradient_loss", "value_loss"), np.float64),
}


class CompiledPPO(CompiledOnPolicyAlgorithm):
    """Base class of the compiled PPO and of sb3-contrib's variants of PPO."""

    _algorithm: ClassVar[type[learn.PPO]] = learn.PPO
    normalize_advantage: bool
    batch_size: Any
    n_epochs: int
    clip_range: Any
    clip_range_vf: Any
    target_kl: float | None

    def _settings(self, progress: float, learning_rate: float) -> learn.PPO:
        # SB3's `_setup_model` has turned both into schedules.
        clip_range, clip_range_vf = (
            schedule and schedule(progress) for schedule in (self.clip_range, self.clip_range_vf)
        )
        return self._algorithm(
            **self._shared_settings(),
            learning_rate=learning_rate,
            normalize_advantage=self.normalize_advantage,
            batch_size=self.batch_size or self.n_steps * self.n_envs,
            n_epochs=self.n_epochs,
            clip_range=clip_range,
            clip_range_vf=clip_range_vf,
            target_kl=self.target_kl,
        )

    def _record(self, settings: learn.PPO, metrics: dict[str, float]) -> None:
        epochs, stopped_at_kl = int(metrics.pop("epochs")), metrics.pop("stopped_at_kl")
        if self.verbose >= 1 and stopped_at_kl > 0:
            print(f"Early stopping at step {epochs - 1} due to reaching max kl: {stopped_at_kl:.2f}")
        self._n_updates += epochs
        for name, value in metrics.items():
            self.logger.record(f"train/{name}", LOGGED_AS.get(name, float)(value))
        self._record_std()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", settings.clip_range)
        if settings.clip_range_vf is not None:
            self.logger.record("train/clip_range_vf", settings.clip_range_vf)


@compiled
class PPO(CompiledPPO, stable_baselines3.PPO):
    """Proximal policy optimization (PPO): `stable_baselines3.PPO`, compiled, with the same arguments and `engine`.

    Use it as the first choice when environment steps are cheap, as in JAX environments, and for any action space: it
    learns from many environments in parallel, and is less sensitive to its settings than the off-policy algorithms.
    """

    policy_aliases = stable_baselines3.PPO.policy_aliases | {"SimbaPolicy": SimbaActorCriticPolicy}

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[PPOArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)
