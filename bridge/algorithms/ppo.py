"""PPO: Stable-Baselines3's, compiled."""

from __future__ import annotations

from typing import Any

import stable_baselines3

from bridge.algorithms.base import constructor_like
from bridge.algorithms.on_policy import CompiledOnPolicyAlgorithm
from jaxenvs import learn


class PPO(CompiledOnPolicyAlgorithm, stable_baselines3.PPO):
    """`stable_baselines3.PPO` with the same arguments, and `engine` and `pipeline`."""

    __init__ = constructor_like(CompiledOnPolicyAlgorithm, stable_baselines3.PPO)

    def _settings(self) -> learn.PPO:
        clip_range, clip_range_vf = self._clip_ranges()
        return learn.PPO(
            **self._shared_settings(),
            normalize_advantage=self.normalize_advantage,
            batch_size=self.batch_size,
            n_epochs=self.n_epochs,
            clip_range=clip_range,
            clip_range_vf=clip_range_vf,
            target_kl=self.target_kl,
        )

    def _record(self, metrics: dict[str, Any]) -> None:
        epochs, stopped_at_kl = metrics.pop("epochs"), metrics.pop("stopped_at_kl")
        if self.verbose >= 1 and stopped_at_kl > 0:
            print(f"Early stopping at step {epochs - 1} due to reaching max kl: {stopped_at_kl:.2f}")
        self._n_updates += epochs
        for name, value in metrics.items():
            self.logger.record(f"train/{name}", value)
        self._record_std()
        clip_range, clip_range_vf = self._clip_ranges()
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", clip_range)
        if clip_range_vf is not None:
            self.logger.record("train/clip_range_vf", clip_range_vf)

    def _clip_ranges(self) -> tuple[float, float | None]:
        """Those of the present progress. SB3's `_setup_model` has made schedules of them."""
        clip_range, clip_range_vf = (
            schedule and schedule(self._current_progress_remaining)  # type: ignore[operator]
            for schedule in (self.clip_range, self.clip_range_vf)
        )
        assert clip_range is not None
        return clip_range, clip_range_vf
