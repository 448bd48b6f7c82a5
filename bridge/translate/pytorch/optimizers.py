"""Translation of PyTorch's optimizers to Optax transformations of a vector, and of the layout of their state."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
import torch
from jax.tree_util import PyTreeDef
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from bridge.errors import NotCompilable

KINDS: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adam",
    torch.optim.RMSprop: "rmsprop",
    RMSpropTFLike: "rmsprop_tf",
    torch.optim.SGD: "sgd",
}
# The settings of each kind that are translated. All others must be off.
SETTINGS = {
    "adam": {"betas", "eps", "weight_decay", "decoupled_weight_decay"},
    "rmsprop": {"alpha", "eps", "weight_decay", "momentum", "centered"},
    "rmsprop_tf": {"alpha", "eps", "weight_decay", "momentum", "centered"},
    "sgd": {"weight_decay", "momentum", "nesterov"},
}
# Except for these: the caller applies the learning rate, and `foreach` changes no number.
FREE = {"params", "lr", "initial_lr", "foreach"}

# The numbers that each kind always has.
NUMBERS = {"adam": ("beta1", "beta2", "eps"), "rmsprop": ("alpha", "eps"), "rmsprop_tf": ("alpha", "eps"), "sgd": ()}

# Optax's and PyTorch's names of what an optimizer keeps.
_RMSPROP_NAMES = {"count": "step", "mu": "grad_avg", "nu": "square_avg", "trace": "momentum_buffer"}
NAMES = {
    "adam": {"count": "step", "mu": "exp_avg", "nu": "exp_avg_sq"},
    "rmsprop": _RMSPROP_NAMES,
    "rmsprop_tf": _RMSPROP_NAMES,
    "sgd": {"trace": "momentum_buffer"},
}
# The order in which PyTorch creates what an optimizer keeps for a parameter.
IN_ORDER = ("step", "exp_avg", "exp_avg_sq", "square_avg", "momentum_buffer", "grad_avg")


@dataclasses.dataclass(frozen=True)
class ExportedOptimizer:
    """Optimizer without its numbers. Optimizers of one kind with the same parts are equal, and share compiled
    functions.

    Attributes:
      kind: "adam", "rmsprop", "rmsprop_tf" (RMSpropTFLike) or "sgd".
      weight_decay, decoupled_weight_decay: whether weights decay: through their gradient, or as in AdamW.
      momentum, nesterov, centered: as PyTorch's.
    """

    kind: str
    weight_decay: bool = False
    decoupled_weight_decay: bool = False
    momentum: bool = False
    nesterov: bool = False
    centered: bool = False

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
        decay = [optax.add_decayed_weights(settings["weight_decay"])] if "weight_decay" in self._numbers else []
        momentum = [optax.trace(settings["momentum"], self.nesterov)] if self.momentum else []
        if self.kind == "adam":
            adam = optax.scale_by_adam(settings["beta1"], settings["beta2"], settings["eps"])
            # PyTorch multiplies decoupled decay by the learning rate too.
            return optax.chain(adam, *decay) if self.decoupled_weight_decay else optax.chain(*decay, adam)
        if self.kind == "sgd":
            return optax.chain(optax.identity(), *decay, *momentum)
        is_like_tf = self.kind == "rmsprop_tf"
        scale_by = optax.scale_by_stddev if self.centered else optax.scale_by_rms
        rms = scale_by(settings["alpha"], settings["eps"], initial_scale=float(is_like_tf), eps_in_sqrt=is_like_tf)
        # RMSprop does not use the number of steps, but PyTorch counts them.
        return optax.chain(*decay, rms, *momentum, optax.scale_by_schedule(lambda count: 1.0))

    @property
    def _numbers(self) -> tuple[str, ...]:
        decays = self.weight_decay or self.decoupled_weight_decay
        return NUMBERS[self.kind] + ("weight_decay",) * decays + ("momentum",) * self.momentum


def export_optimizer(optimizer: torch.optim.Optimizer) -> ExportedOptimizer:
    """Translate an optimizer over the parameters of its one group, whatever they are."""
    cls = type(optimizer)
    groups = optimizer.param_groups
    if cls not in KINDS:
        raise NotCompilable(f"The optimizer {cls.__name__} cannot be translated to JAX.")
    if len(groups) != 1:
        raise NotCompilable(f"The optimizer must have one parameter group, got {len(groups)}.")
    has_hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if has_hooks or "step" in vars(optimizer):
        raise NotCompilable(f"The optimizer {cls.__name__} has hooks or a replaced step().")
    group = groups[0]
    for name, value in group.items():
        if name not in FREE and value and (name not in SETTINGS[KINDS[cls]] or isinstance(value, torch.Tensor)):
            raise NotCompilable(f"{cls.__name__} with {name}={value!r} cannot be translated to JAX.")
    decays = bool(group["weight_decay"])
    is_decoupled = decays and (cls is torch.optim.AdamW or bool(group.get("decoupled_weight_decay")))
    return ExportedOptimizer(
        kind=KINDS[cls],
        weight_decay=decays and not is_decoupled,
        decoupled_weight_decay=is_decoupled,
        momentum=bool(group.get("momentum")),
        nesterov=bool(group.get("nesterov")),
        centered=bool(group.get("centered")),
    )


def one_count(counts: Sequence[int]) -> int:
    """Return how many steps all parameters took."""
    if counts.count(counts[0]) != len(counts):
        counts = sorted(set(counts))
        raise NotCompilable(f"All parameters must have taken the same number of optimizer steps, got {counts}.")
    return counts[0]


def create_state(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], names: Collection[str]) -> None:
    """Create what an optimizer lacks of its state, as PyTorch would.

    Args:
      names: of what it keeps of each parameter.
    """
    if not names:  # looking up an entry creates it, and an optimizer that keeps nothing has none
        return
    for parameter in parameters:
        entry = optimizer.state[parameter]
        for name in sorted(names, key=IN_ORDER.index):
            if entry.get(name) is None:
                entry[name] = _zero(optimizer, name, parameter)


def _zero(optimizer: torch.optim.Optimizer, name: str, parameter: torch.Tensor) -> torch.Tensor | int:
    if name != "step":
        return torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return 0 if isinstance(optimizer, RMSpropTFLike) else torch.tensor(0.0)  # it counts with a number


def state_layout(
    optimizer: torch.optim.Optimizer, length: int, dtype: np.dtype[Any]
) -> tuple[tuple[str, ...], list[np.ndarray], PyTreeDef]:
    """Return the leaves of an exported optimizer's state for a vector: PyTorch's names, initial values, the structure.

    "step" is a number.
    """
    names, initial, structure = _layout(export_optimizer(optimizer), length, dtype)
    return tuple(NAMES[KINDS[type(optimizer)]][name] for name in names), initial, structure


@functools.lru_cache
def _layout(
    exported: ExportedOptimizer, size: int, dtype: np.dtype[Any]
) -> tuple[tuple[str, ...], list[np.ndarray], PyTreeDef]:
    """Return Optax's names of the leaves of the state for a vector, their initial values, and the structure."""
    transformation = exported.transformation(dict.fromkeys(exported._numbers, 0.0))
    state = jax.jit(transformation.init)(np.zeros(size, dtype))  # one compiled function instead of one per leaf
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    names = tuple(path[-1].name for path, _ in paths)
    # In PyTorch's dtype, even where JAX has no float64.
    return names, [np.array(leaf, dtype if leaf.shape else leaf.dtype) for _, leaf in paths], structure
