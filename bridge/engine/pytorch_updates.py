"""Updates that are PyTorch's, as fast as they may be on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from bridge.engine.compilation import keep_freed_memory


@contextlib.contextmanager
def fast_update(policy: nn.Module) -> Iterator[None]:
    """Meanwhile, on a CPU, SB3's own convolutions have their channels last in memory, and PyTorch's Adam takes a step
    in one pass over the parameters (`fused`). What they compute is the same, up to rounding.

    Only the extractors that are SB3's, because a `view` in one of the user's may refuse the activations; only the
    optimisers whose user left it to PyTorch how they take a step; and only meanwhile, because
    `torch.nn.utils.parameters_to_vector` refuses such weights, and zips hold the settings of optimisers. From the
    first one on, the process keeps memory that was freed: see `keep_freed_memory`.
    """
    if next(policy.parameters()).device.type != "cpu":
        yield
        return
    keep_freed_memory()
    modules = list(policy.modules())
    optimizers = [each for module in modules if isinstance(each := getattr(module, "optimizer", None), Optimizer)]
    with contextlib.ExitStack() as afterwards:
        afterwards.callback(_align, optimizers)
        for module in modules:
            if type(module) is NatureCNN:
                _set_channels_last(module, afterwards)
        _align(optimizers)
        for optimizer in optimizers:
            if type(optimizer) in (Adam, AdamW):
                _fuse(optimizer, afterwards)
        yield


def _set_channels_last(extractor: nn.Module, afterwards: contextlib.ExitStack) -> None:
    weights = [weight for weight in extractor.parameters() if weight.ndim == 4]
    _rearrange(weights, torch.channels_last)
    afterwards.callback(_rearrange, weights, torch.contiguous_format)
    # Else the first convolution rearranges the pictures twice: for its result, and for its gradient.
    hook = extractor.register_forward_pre_hook(
        lambda _, pictures: (pictures[0].contiguous(memory_format=torch.channels_last),)
    )
    afterwards.callback(hook.remove)


def _rearrange(weights: list[nn.Parameter], memory_format: torch.memory_format) -> None:
    for weight in weights:  # as Module.to does, which walks through all modules for it, twice an update
        for array in (weight, weight.grad):
            if array is not None:
                array.data = array.data.contiguous(memory_format=memory_format)


def _align(optimizers: list[Optimizer]) -> None:
    """Let averages lie in memory as their parameters do: a fused step goes through both as if they did."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for name, value in state.items():
                if getattr(value, "shape", None) == parameter.shape and value.stride() != parameter.stride():
                    state[name] = torch.empty_like(parameter, requires_grad=False).copy_(value)


def _fuse(optimizer: Optimizer, afterwards: contextlib.ExitStack) -> None:
    for group in optimizer.param_groups:
        if group["fused"] is None and group["foreach"] is None and not (group["differentiable"] or group["capturable"]):
            group["fused"] = True
            afterwards.callback(group.update, fused=None)
