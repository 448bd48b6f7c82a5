"""Samples that engines know besides SB3's: those with weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class PrioritizedSamples(NamedTuple):
    """SB3's samples, of either kind of observations, with what priorities add.

    Attributes:
      weights: (batch_size,), importance weights, of which the greatest is 1.
      indices: (batch_size,), for `update_priorities`.
    """

    observations: Any
    actions: torch.Tensor
    next_observations: Any
    dones: torch.Tensor
    rewards: torch.Tensor
    weights: torch.Tensor
    indices: torch.Tensor
    discounts: torch.Tensor | None = None
