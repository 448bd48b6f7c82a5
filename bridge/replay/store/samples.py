"""Samples of replay buffers with importance weights, besides SB3's."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class PrioritizedSamples(NamedTuple):
    """Samples with the fields of SB3's, for either kind of observations, and weights and indices.

    Attributes:
      weights: (batch_size, 1), importance weights, the greatest of which is 1.
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
