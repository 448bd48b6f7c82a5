"""Replay buffers as users write them: subclasses of SB3's, whose `sample` looks at the model."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer


class Looking:
    """Keeps how many updates there were, and what the critic's weights summed to, at each sample.

    Attributes:
      model: the one that learns from the buffer.
      looks: two numbers for each call of `sample`.
    """

    model: Any = None

    def sample(self, batch_size: int, env: Any = None) -> Any:
        if self.model is not None:
            critic = getattr(self.model, "critic", None) or self.model.policy
            with torch.no_grad():
                total = float(sum(parameter.abs().sum() for parameter in critic.parameters()))
            looks = vars(self).setdefault("looks", [])
            looks.append([int(self.model._n_updates), total])
        return super().sample(batch_size, env)  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "model"}


class OwnReplayBuffer(Looking, ReplayBuffer):
    """For Box and Discrete observations."""


class OwnDictReplayBuffer(Looking, DictReplayBuffer):
    """For Dict observations."""
