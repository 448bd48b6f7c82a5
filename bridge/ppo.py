"""PPO: Stable-Baselines3's, compiled."""

from __future__ import annotations

import math
from typing import Any

import stable_baselines3

from bridge.on_policy import CompiledOnPolicyAlgorithm
from jaxenvs import learn


class PPO(CompiledOnPolicyAlgorithm, stable_baselines3.PPO):
    """`stable_baselines3.PPO` with the same arguments, and `engine`."""

    def _learner(self, **common: Any) -> learn.PPO:
        progress = self._current_progress_remaining
        return learn.PPO(
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            ent_coef=self.ent_coef,
            vf_coef=self.vf_coef,
            max_grad_norm=self.max_grad_norm,
            normalize_advantage=self.normalize_advantage,
            batch_size=self.batch_size,
            n_epochs=self.n_epochs,
            clip_range=self.clip_range(progress),
            clip_range_vf=None if self.clip_range_vf is None else self.clip_range_vf(progress),
            target_kl=self.target_kl,
            **common,
        )

    def _record(self, metrics: dict[str, Any]) -> None:
        epochs, stopped_at_kl = metrics.pop("epochs"), metrics.pop("stopped_at_kl")
        if self.verbose >= 1 and not math.isnan(stopped_at_kl):
            print(f"Early stopping at step {epochs - 1} due to reaching max kl: {stopped_at_kl:.2f}")
        self._n_updates += epochs
        for name, value in metrics.items():
            self.logger.record(f"train/{name}", value)
        self._record_std()
        progress = self._current_progress_remaining
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", self.clip_range(progress))
        if self.clip_range_vf is not None:
            self.logger.record("train/clip_range_vf", self.clip_range_vf(progress))
