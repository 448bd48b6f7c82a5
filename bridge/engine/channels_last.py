"""Updates that are PyTorch's: the memory format in which its convolutions learn fastest on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

RGB = 3  # channels


@contextlib.contextmanager
def channels_last(policy: nn.Module) -> Iterator[None]:
    """Meanwhile, on a CPU, SB3's own convolutions have their channels last in memory; what they compute is the same.

    Only those of images whose channels are not three: PyTorch learns from these faster as they are. Only the extractors
    that are SB3's, because a `view` in one of the user's may refuse the activations; and only meanwhile, because
    `torch.nn.utils.parameters_to_vector` refuses such weights.
    """
    extractors = [module for module in policy.modules() if type(module) is NatureCNN]
    weights = [next(module.parameters()) for module in extractors]  # (outputs, channels, height, width)
    extractors = [
        module for module, weight in zip(extractors, weights) if weight.device.type == "cpu" and weight.shape[1] != RGB
    ]
    for module in extractors:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        yield
    finally:
        for module in extractors:
            module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
