"""Updates that are PyTorch's, as fast as they may be on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

from bridge.engine.memory import keep_freed_memory


@contextlib.contextmanager
def fast_update(policy: nn.Module) -> Iterator[None]:
    """Meanwhile, on a CPU, SB3's own convolutions have their channels last in memory; what they compute is the same.

    Only the extractors that are SB3's, because a `view` in one of the user's may refuse the activations; and only
    meanwhile, because `torch.nn.utils.parameters_to_vector` refuses such weights. From the first one on, the process
    keeps memory that was freed: see `keep_freed_memory`.
    """
    if next(policy.parameters()).device.type == "cpu":
        keep_freed_memory()
    extractors = [module for module in policy.modules() if type(module) is NatureCNN]
    extractors = [module for module in extractors if next(module.parameters()).device.type == "cpu"]
    for module in extractors:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        yield
    finally:
        for module in extractors:
            module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
