"""Features extractors as users write them, and the numbers that they read."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from tests.differential.environments import LARGE


class Scaled(BaseFeaturesExtractor):
    """Features times a number in an object that is no module."""

    def __init__(self, space: Any, config: Any) -> None:
        super().__init__(space, get_flattened_obs_dim(space))
        self.config, self.flatten = config, nn.Flatten()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.flatten(observations) * self.config.scale


class Running(BaseFeaturesExtractor):
    """Features times the mean of an object of SB3's."""

    def __init__(self, space: Any, rms: RunningMeanStd) -> None:
        super().__init__(space, get_flattened_obs_dim(space))
        self.rms, self.flatten = rms, nn.Flatten()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.flatten(observations) * float(self.rms.mean)


class Counting(BaseFeaturesExtractor):
    """Counts its calls, and keeps the last features, in a dict."""

    def __init__(self, space: Any) -> None:
        super().__init__(space, get_flattened_obs_dim(space))
        self.seen: dict[str, Any] = {"calls": 0}
        self.flatten = nn.Flatten()

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        self.seen["calls"] += 1
        self.seen["features"] = self.flatten(observations).detach()
        return self.flatten(observations)


class Small(BaseFeaturesExtractor):
    """Brings integers to numbers of about 1; of a Dict, all parts, one after the other."""

    def __init__(self, space: Any) -> None:
        parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
        super().__init__(space, sum(get_flattened_obs_dim(part) for part in parts.values()))
        self.largest = {name: self._largest(part) for name, part in parts.items()}

    def forward(self, observations: Any) -> torch.Tensor:
        parts = observations if isinstance(observations, dict) else {"": observations}
        return torch.cat([parts[name].flatten(1) / largest for name, largest in self.largest.items()], dim=1)

    @staticmethod
    def _largest(space: Any) -> float:
        return {np.int64: 4.0 * LARGE, np.uint8: 255.0}[space.dtype.type] if space.shape else 1.0


class TinyCnn(BaseFeaturesExtractor):
    """One convolution."""

    def __init__(self, space: Any) -> None:
        super().__init__(space, 8)
        self.cnn = nn.Sequential(nn.Conv2d(space.shape[0], 2, 3, 1), nn.Tanh(), nn.Flatten())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.cnn(observations)


def of(observations: str, extractor: str) -> dict[str, Any]:
    """Arguments of a policy.

    Args:
      observations, extractor: a Setting's.
    """
    if observations in ("large", "bytes", "parts"):
        return {"features_extractor_class": Small}
    if observations == "image":
        return {"features_extractor_class": TinyCnn}
    if extractor == "scaled":
        config = types.SimpleNamespace(scale=1.0)
        return {"features_extractor_class": Scaled, "features_extractor_kwargs": {"config": config}}
    if extractor == "running":
        rms = RunningMeanStd(shape=())
        rms.mean = np.array(1.0)
        return {"features_extractor_class": Running, "features_extractor_kwargs": {"rms": rms}}
    return {"features_extractor_class": Counting} if extractor == "counting" else {}


def scale(model: Any, value: float) -> None:
    """Change the number that features extractors read."""
    for module in model.policy.modules():
        if isinstance(module, Scaled):
            module.config.scale = value
        elif isinstance(module, Running):
            module.rms.mean = np.array(value)


def seen(model: Any) -> list[Any]:
    """What features extractors remember."""
    counting = [module for module in model.policy.modules() if isinstance(module, Counting)]
    return [{"calls": module.seen["calls"], "keeps": sorted(module.seen)} for module in counting]
