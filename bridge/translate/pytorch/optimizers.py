"""Translation of PyTorch's optimizers to Optax transformations of a vector, and of the layout of their state."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
import torch
from jax.tree_util import PyTreeDef
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch.optim import optimizer as torch_optimizer

from bridge.errors import NotCompilable
from bridge.libraries import is_library, root_of
from bridge.originals import routines

# The kind of each class, and the options that are always on in it.
KINDS: dict[type[torch.optim.Optimizer], tuple[str, frozenset[str]]] = {
    torch.optim.Adam: ("adam", frozenset()),
    torch.optim.AdamW: ("adam", frozenset({"decoupled_weight_decay"})),
    torch.optim.RMSprop: ("rmsprop", frozenset()),
    RMSpropTFLike: ("rmsprop", frozenset({"like_tf"})),
    torch.optim.SGD: ("sgd", frozenset()),
}
# The numbers that each kind always has, and what may be on. All other settings must be off.
NUMBERS = {"adam": ("beta1", "beta2", "eps"), "rmsprop": ("alpha", "eps"), "sgd": ()}
OPTIONS = {
    "adam": {"weight_decay", "decoupled_weight_decay"},
    "rmsprop": {"weight_decay", "momentum", "centered"},
    "sgd": {"weight_decay", "momentum", "nesterov"},
}
# Except for these: the caller applies the learning rate, and `foreach` changes no number.
FREE = {"params", "lr", "initial_lr", "foreach"}

# Optax's and PyTorch's names of what an optimizer keeps, in PyTorch's order.
NAMES = {
    "adam": {"count": "step", "mu": "exp_avg", "nu": "exp_avg_sq"},
    "rmsprop": {"count": "step", "nu": "square_avg", "trace": "momentum_buffer", "mu": "grad_avg"},
    "sgd": {"trace": "momentum_buffer"},
}


@dataclasses.dataclass(frozen=True)
class ExportedOptimizer:
    """Optimizer without its numbers. Optimizers of one kind with the same options are equal, and share compiled
    functions.

    Attributes:
      kind: "adam", "rmsprop" or "sgd".
      options: PyTorch's names of what is on, as in OPTIONS; "like_tf" for RMSpropTFLike.
    """

    kind: str
    options: frozenset[str]

    def settings(self, optimizer: torch.optim.Optimizer) -> dict[str, float]:
        """Return the present numbers of an optimizer of this kind, except for the learning rate."""
        group = optimizer.param_groups[0]
        if "betas" in group:
            group = group | {"beta1": group["betas"][0], "beta2": group["betas"][1]}
        return {name: float(group[name]) for name in self._numbers}

    def transformation(self, settings: Mapping[str, jax.typing.ArrayLike]) -> optax.GradientTransformation:
        """Return the optimizer as an Optax transformation of a vector's gradient, except for the learning rate.

        Args:
          settings: numbers, which may be traced. The state has the same structure for all of them.
        """
        options = self.options
        decay = [optax.add_decayed_weights(settings["weight_decay"])] if "weight_decay" in options else []
        momentum = [optax.trace(settings["momentum"], "nesterov" in options)] if "momentum" in options else []
        if self.kind == "adam":
            adam = optax.scale_by_adam(settings["beta1"], settings["beta2"], settings["eps"])
            # PyTorch multiplies decoupled decay by the learning rate too.
            return optax.chain(adam, *decay) if "decoupled_weight_decay" in options else optax.chain(*decay, adam)
        if self.kind == "sgd":
            return optax.chain(optax.identity(), *decay, *momentum)
        is_like_tf = "like_tf" in options
        scale_by = optax.scale_by_stddev if "centered" in options else optax.scale_by_rms
        rms = scale_by(settings["alpha"], settings["eps"], initial_scale=float(is_like_tf), eps_in_sqrt=is_like_tf)
        # RMSprop does not use the number of steps, but PyTorch counts them.
        return optax.chain(*decay, rms, *momentum, optax.scale_by_schedule(lambda count: 1.0))

    @property
    def _numbers(self) -> tuple[str, ...]:
        return *NUMBERS[self.kind], *sorted(self.options & {"weight_decay", "momentum"})


def export_optimizer(optimizer: torch.optim.Optimizer) -> ExportedOptimizer:
    """Translate an optimizer over the parameters of its one group, whatever they are."""
    cls: Any = type(optimizer)
    groups = optimizer.param_groups
    if cls not in KINDS:
        raise NotCompilable(f"The optimizer {cls.__name__} cannot be translated to JAX.")
    if len(groups) != 1:
        raise NotCompilable(f"The optimizer must have one parameter group, got {len(groups)}.")
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    has_hooks = any((*hooks, torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks))
    # PyTorch itself puts a step() into these classes, when the first of their objects is made.
    is_replaced = routines(cls) & vars(optimizer).keys() or not is_library(root_of(cls.step))
    if has_hooks or is_replaced:
        raise NotCompilable(f"The optimizer {cls.__name__} has hooks or a replaced method.")
    kind, always_on = KINDS[cls]
    known = {*NUMBERS[kind], *OPTIONS[kind], *(["betas"] if kind == "adam" else [])}
    for name, value in groups[0].items():
        if name not in FREE and value and (name not in known or isinstance(value, torch.Tensor)):
            raise NotCompilable(f"{cls.__name__} with {name}={value!r} cannot be translated to JAX.")
    return ExportedOptimizer(kind, always_on | {name for name in OPTIONS[kind] if groups[0].get(name)})


def one_count(counts: Sequence[int]) -> int:
    """Return how many steps all parameters took."""
    if counts.count(counts[0]) != len(counts):
        counts = sorted(set(counts))
        raise NotCompilable(f"All parameters must have taken the same number of optimizer steps, got {counts}.")
    return counts[0]


def create_state(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], names: Sequence[str]) -> None:
    """Create what an optimizer lacks of its state, as PyTorch would.

    Args:
      names: of what it keeps of each parameter.
    """
    order = [*NAMES[KINDS[type(optimizer)][0]].values()]
    for name, parameter in itertools.product(sorted(names, key=order.index), parameters):
        entry = optimizer.state[parameter]
        if entry.get(name) is not None:
            continue
        if name != "step":
            entry[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        else:
            entry[name] = 0 if isinstance(optimizer, RMSpropTFLike) else torch.tensor(0.0)  # it counts with a number


@functools.lru_cache
def state_layout(
    exported: ExportedOptimizer, length: int, dtype: np.dtype
) -> tuple[tuple[str, ...], list[np.ndarray], PyTreeDef]:
    """Return the leaves of an optimizer's state for a vector: PyTorch's names, initial values, the structure.

    "step" is a number.
    """
    transformation = exported.transformation(dict.fromkeys(exported._numbers, 0.0))
    state = jax.jit(transformation.init)(np.zeros(length, dtype))  # one compiled function instead of one per leaf
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    names = tuple(NAMES[exported.kind][path[-1].name] for path, _ in paths)
    # In PyTorch's dtype, even where JAX has no float64.
    return names, [np.array(leaf, dtype if leaf.shape else leaf.dtype) for _, leaf in paths], structure
