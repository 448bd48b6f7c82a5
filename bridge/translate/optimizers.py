"""PyTorch's optimisers as Optax transformations of a vector, and their moments, back and forth."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from bridge.translate.operations import NotCompilable

# Of each optimiser, the settings that are translated; all others must be off.
_ADAM = {"betas", "eps", "weight_decay", "decoupled_weight_decay"}
_RMSPROP = {"alpha", "eps", "weight_decay", "momentum", "centered"}
SETTINGS: dict[type[torch.optim.Optimizer], set[str]] = {
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.RMSprop: _RMSPROP,
    RMSpropTFLike: _RMSPROP,
    torch.optim.SGD: {"weight_decay", "momentum", "nesterov"},
}
# But for these: the learning rate is the caller's, and `foreach` changes no number.
FREE = {"params", "lr", "initial_lr", "foreach"}

# Optax's names of what an optimiser keeps, and PyTorch's.
_ADAM_NAMES = {"count": "step", "mu": "exp_avg", "nu": "exp_avg_sq"}
_RMSPROP_NAMES = {"count": "step", "mu": "grad_avg", "nu": "square_avg", "trace": "momentum_buffer"}
NAMES: dict[type[torch.optim.Optimizer], dict[str, str]] = {
    torch.optim.Adam: _ADAM_NAMES,
    torch.optim.AdamW: _ADAM_NAMES,
    torch.optim.RMSprop: _RMSPROP_NAMES,
    RMSpropTFLike: _RMSPROP_NAMES,
    torch.optim.SGD: {"trace": "momentum_buffer"},
}


def export_optimizer(optimizer: torch.optim.Optimizer) -> optax.GradientTransformation:
    """What the optimiser does to a vector of all parameters, but for the learning rate.

    Equal settings give the same object.

    Raises:
      NotCompilable: the optimiser, or a setting of it, has no translation.
    """
    cls: Any = type(optimizer)
    groups = optimizer.param_groups
    if cls not in SETTINGS:
        raise NotCompilable(f"There is no translation to JAX of the optimizer {cls.__name__}.")
    if len(groups) != 1:
        raise NotCompilable(f"The optimizer must have one group of parameters, got {len(groups)}.")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise NotCompilable(f"The optimizer {cls.__name__} has hooks.")
    for name, value in groups[0].items():
        if name not in FREE and value and (name not in SETTINGS[cls] or isinstance(value, torch.Tensor)):
            raise NotCompilable(f"There is no translation to JAX of {cls.__name__} with {name}={value!r}.")
    settings = ((name, groups[0].get(name)) for name in sorted(SETTINGS[cls]))
    # betas may be a list.
    return _transformation(cls, tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in settings))


def read_optimizer(optimizer: torch.optim.Optimizer) -> Any:
    """The state of the exported optimiser: NumPy arrays of their own memory. Where PyTorch has none yet, the initial.

    Raises:
      NotCompilable: as for `export_optimizer`; or parameters differ in the number of steps they took.
    """
    parameters = optimizer.param_groups[0]["params"]
    entries = [optimizer.state.get(parameter, {}) for parameter in parameters]
    names, initial, structure = _layout(export_optimizer(optimizer), *_size(parameters))
    leaves = []
    for name, leaf in zip(_torch_names(optimizer, names), initial):
        if name == "step":
            counts = sorted({int(entry.get(name, 0)) for entry in entries})
            if len(counts) > 1:
                raise NotCompilable(f"All parameters must have taken the same number of optimizer steps, got {counts}.")
            leaves.append(np.full_like(leaf, counts[0]))
        else:
            kept = [entry.get(name) for entry in entries]
            parts = [part if now is None else now.flatten() for now, part in zip(kept, _split(leaf, parameters))]
            leaves.append(torch.cat(parts).cpu().numpy())
    return jax.tree.unflatten(structure, leaves)


def write_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Copy a state, as `read_optimizer` gives it, into the optimiser. What it has not yet is made as PyTorch would."""
    parameters = optimizer.param_groups[0]["params"]
    names, _, _ = _layout(export_optimizer(optimizer), *_size(parameters))
    # Looking one up makes it, and an optimiser that keeps nothing has none.
    entries = [optimizer.state[parameter] for parameter in parameters if names]
    for name, leaf in zip(_torch_names(optimizer, names), jax.tree.leaves(state)):
        if name == "step":
            is_number = isinstance(optimizer, RMSpropTFLike)
            for entry in entries:
                if is_number:
                    entry[name] = int(leaf)
                elif name in entry:
                    entry[name].fill_(int(leaf))
                else:
                    entry[name] = torch.tensor(float(leaf))
            continue
        for parameter, entry, part in zip(parameters, entries, _split(leaf, parameters)):
            if entry.get(name) is None:
                entry[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            entry[name].copy_(part.view_as(parameter))


def _split(vector: np.ndarray, parameters: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The parts of a vector, on the host."""
    # Copied first, because torch warns of arrays that are read-only, as JAX's are.
    return torch.split(torch.from_numpy(np.array(vector)), [parameter.numel() for parameter in parameters])


def _torch_names(optimizer: torch.optim.Optimizer, names: tuple[str, ...]) -> list[str]:
    return [NAMES[type(optimizer)][name] for name in names]


def _size(parameters: list[torch.Tensor]) -> tuple[int, np.dtype[Any]]:
    return sum(parameter.numel() for parameter in parameters), parameters[0].detach().cpu().numpy().dtype


@functools.lru_cache
def _layout(transformation: Any, size: int, dtype: np.dtype[Any]) -> tuple[tuple[str, ...], list[np.ndarray], Any]:
    """Of the state for a vector: the names of its leaves, their initial values, and the structure."""
    paths, structure = jax.tree_util.tree_flatten_with_path(transformation.init(jnp.zeros(size, dtype)))
    names = tuple(path[-1].name for path, _ in paths)
    # In the dtype of PyTorch, even where JAX has no float64.
    return names, [np.array(leaf, dtype if leaf.shape else leaf.dtype) for _, leaf in paths], structure


@functools.lru_cache
def _transformation(cls: type[Any], settings: tuple[tuple[str, Any], ...]) -> optax.GradientTransformation:
    options = dict(settings)
    decay = [optax.add_decayed_weights(options["weight_decay"])] if options["weight_decay"] else []
    momentum = [optax.trace(options["momentum"], bool(options.get("nesterov")))] if options.get("momentum") else []
    if cls in (torch.optim.Adam, torch.optim.AdamW):
        adam = optax.scale_by_adam(*options["betas"], options["eps"])
        # PyTorch multiplies decoupled decay by the learning rate too.
        is_decoupled = cls is torch.optim.AdamW or options["decoupled_weight_decay"]
        return optax.chain(adam, *decay) if is_decoupled else optax.chain(*decay, adam)
    if cls is torch.optim.SGD:
        return optax.chain(optax.identity(), *decay, *momentum)
    is_like_tf = cls is RMSpropTFLike
    scale_by = optax.scale_by_stddev if options["centered"] else optax.scale_by_rms
    rms = scale_by(options["alpha"], options["eps"], initial_scale=float(is_like_tf), eps_in_sqrt=is_like_tf)
    # RMSprop has no use for the number of its steps, but PyTorch counts them.
    return optax.chain(*decay, rms, *momentum, optax.scale_by_schedule(lambda count: 1.0))
