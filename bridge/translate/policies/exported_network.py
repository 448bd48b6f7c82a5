"""ExportedNetwork, the base of all translated networks: encoded observations and a module, without weights."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.distributions import StateDependentNoiseDistribution
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.preprocessing import is_image_space
from torch import nn

from bridge.contrib import contrib_class
from bridge.errors import NotCompilable
from bridge.originals import has_own_methods
from bridge.sb3 import Space
from bridge.translate.pytorch.modules import ExportedModule, Params, export_module, unravel
from bridge.translate.pytorch.tracing import Computation, first_line, require_unreplaced
from bridge.translate.user_modules.reads import MODULE_METHODS, hidden_names
from jaxenvs.learn import Masked, Recalled
from jaxenvs.learn.networks.actor_critic import ActionHead

# The networks with running statistics that jaxenvs.learn updates.
CROSSQ = (("crossq.policies", "Actor"), ("crossq.policies", "CrossQCritic"))
# What each call, and each change of the mode, of a module runs; and what lists its parameters.
OF_ALL_MODULES = ("__call__", "__getattr__", "__getattribute__", *MODULE_METHODS, "set_training_mode", "modules")
OF_ALL_MODULES += ("parameters", "named_parameters", "named_buffers")
# JAX without x64 keeps 32 bits of these: 2**33 + 5 would become 5.
WIDE_INTEGERS = frozenset({np.dtype(np.int64), np.dtype(np.uint64)})


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Encoding of the observations of one space as numbers.

    Attributes:
      shape: of an observation.
      nvec: for Discrete and MultiDiscrete, the number of classes of each number. The numbers become one-hot vectors,
        end to end.
      is_image: numbers are divided by 255.
    """

    shape: tuple[int, ...]
    nvec: tuple[int, ...] = ()
    is_image: bool = False

    def __call__(self, observation: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
        """Return encoded observations, (batch, *encoded_shape). Discrete observations may come as (batch, 1)."""
        if self.nvec:
            numbers = observation.reshape(-1, len(self.nvec)).astype(jnp.int32)
            # Numbers with equally many classes together, because code for each takes long to compile.
            runs = [(len([*run]), n) for n, run in itertools.groupby(self.nvec)]
            parts = jax.lax.split(numbers, [count for count, _ in runs], axis=1)
            one_hot = [
                jax.nn.one_hot(part, n, dtype=dtype).reshape(-1, count * n) for part, (count, n) in zip(parts, runs)
            ]
            return jnp.concatenate(one_hot, axis=1)
        return observation.astype(dtype) / 255 if self.is_image else observation.astype(dtype)

    def from_host(self, observation: np.ndarray) -> np.ndarray:
        """Check and convert observations before a compiled function gets them, which can do neither.

        Classes must be in range; else the RuntimeError has the message of `torch.nn.functional.one_hot`, where
        `jax.nn.one_hot` gives zeros. 64-bit integers of a Box become float32, as in SB3's policies.
        """
        if self.nvec:
            classes = np.asarray(observation).reshape(-1, len(self.nvec)).astype(np.int64, copy=False)
            if (classes < 0).any():
                raise RuntimeError("Class values must be non-negative.")
            if (classes >= self.nvec).any():
                raise RuntimeError("Class values must be smaller than num_classes.")
            return observation
        return observation.astype(np.float32) if observation.dtype in WIDE_INTEGERS else observation

    @property
    def encoded_shape(self) -> tuple[int, ...]:
        """The shape of one observation as the network takes it."""
        return (sum(self.nvec),) if self.nvec else self.shape


# Of a space, or of each key of a Dict space.
Encodings = Encoding | tuple[tuple[str, Encoding], ...]


def by_key(function: Callable[..., object], encoding: Encodings, *observation: Any) -> object:
    """Return `function(encoding, *observation)`; for a Dict space, a dict of the results for each key."""
    if isinstance(encoding, Encoding):
        return function(encoding, *observation)
    return {key: function(part, *(each[key] for each in observation)) for key, part in encoding}


def from_host(encoding: Encodings, observation: object) -> Any:
    """Check and convert the observations of a space, or of each key of a Dict space, as `Encoding.from_host` does."""
    return by_key(Encoding.from_host, encoding, observation)


def export_encoding(space: Space, normalize_images: bool) -> Encodings:
    """Return how SB3 encodes observations; for a Dict space, of each key."""
    if isinstance(space, spaces.Dict):
        return tuple((key, _encoding(part, normalize_images)) for key, part in space.items())
    return _encoding(space, normalize_images)


def _encoding(space: Space, normalize_images: bool) -> Encoding:
    if isinstance(space, spaces.Box):
        return Encoding(space.shape, is_image=normalize_images and is_image_space(space))
    if isinstance(space, spaces.MultiBinary):
        return Encoding(space.shape)
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Encoding((), nvec=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
        return Encoding(space.shape, nvec=tuple(space.nvec.tolist()))
    raise NotCompilable(f"Observations of {space} cannot be translated to JAX.")


@dataclasses.dataclass(frozen=True)
class Exploration:
    """Settings of state-dependent exploration, as in StateDependentGaussian."""

    squash: bool
    expln: bool
    epsilon: float
    learn_features: bool


@dataclasses.dataclass(frozen=True)
class ExportedNetwork:
    """Network without its weights. Networks of equal architecture are equal, and share compiled functions.

    Methods take `params` by name or as a vector, and compute in their dtype. They take a batch of observations as SB3's
    policies do: images with their channels first; of a Discrete space, (batch,) or (batch, 1).

    Attributes:
      encoding: of observations; for a Dict space, of each key.
      module: maps encoded observations to numbers. It has the parameters of `named_parameters()`.
      head: of the actions.
    """

    encoding: Encodings
    module: ExportedModule
    head: ActionHead

    def named(self, params: Params, statistics: jax.Array | None = None) -> Mapping[str, jax.Array]:
        """Return parameters by name, with running statistics if these come separately, as a vector."""
        named = self.module.named(params)
        return named if statistics is None else {**named, **unravel(self.module.statistics, statistics)}

    def to_env(self, action: jax.Array) -> jax.Array:
        """Return a batch of actions in their space's dtype. Box actions, given in [-1, 1], are scaled to the bounds."""
        return self.head.unscale(action) if self.head.kind == "box" else self.head.to_env(action)

    def numbers(self, params: Mapping[str, jax.Array], observation: object, *further: jax.Array, **options: Any) -> Any:
        """Return what the module computes for a batch of observations.

        Args:
          params: by name.
          observation: of the environments.
          further: arrays that the module takes after the observations.
          options: `instead`, as for a Computation: functions that replace some operations.
        """
        dtype = next(iter(params.values())).dtype
        encoded = by_key(lambda encoding, part: encoding(part, dtype), self.encoding, observation)
        return self.module(params, encoded, *(array.astype(dtype) for array in further), **options)

    def from_host(self, observation: object) -> Any:
        """Check and convert observations, which may be Masked or Recalled, as `Encoding.from_host` does."""
        if isinstance(observation, Masked | Recalled):
            return dataclasses.replace(observation, observation=self.from_host(observation.observation))
        return from_host(self.encoding, observation)


Encoded = torch.Tensor | dict[str, torch.Tensor]

# What each network has computed until now: a new computation whenever a number that its code reads has changed.
_COMPUTATIONS: WeakKeyDictionary[nn.Module, set[Computation]] = WeakKeyDictionary()
# For each new one, functions are compiled anew, which takes longer than what they save.
MOST_COMPUTATIONS = 5


def keeps_changing(policy: nn.Module) -> bool:
    """Return whether numbers that the code of a policy's networks reads change repeatedly, such as annealed ones."""
    return any(len(_COMPUTATIONS.get(part, ())) > MOST_COMPUTATIONS for part in policy.modules())


class ModuleView(nn.Module):
    """Module with the parts and numbers of another module, whose forward is a function of these and the inputs."""

    compute: Callable[..., object]

    def __init__(self, module: nn.Module, compute: Callable[..., object]) -> None:
        super().__init__()
        numbers = {name: value for name, value in vars(module).items() if value is None or isinstance(value, int)}
        vars(self).update(numbers, compute=compute)
        # Not as a submodule, so that submodules and parameters keep the names that they have in the module.
        self._modules, self._parameters, self._buffers = module._modules, module._parameters, module._buffers

    def forward(self, *inputs: Encoded) -> object:
        """Return the results of the function."""
        return self.compute(self, *inputs)


def export_view(network: BaseModel, compute: Callable[..., object], *further: int) -> tuple[Encodings, ExportedModule]:
    """Return the encoding of a network's observations, and a function of its parts as a translated module.

    Args:
      compute: takes the network and encoded observations.
      further: sizes of the vectors that `compute` takes after the observations.
    """
    encoding = export_encoding(network.observation_space, network.normalize_images)

    def example(*shape: int) -> torch.Tensor:
        return torch.zeros((1, *shape), device=network.device)

    encoded = by_key(lambda part: example(*part.encoded_shape), encoding)
    is_crossqs = any(isinstance(network, contrib_class(*each)) for each in CROSSQ)
    view = ModuleView(network, compute)
    module = export_module(view, encoded, *map(example, further), has_statistics=is_crossqs)
    _COMPUTATIONS.setdefault(network, set()).add(module.computation)
    return encoding, module


def shapes_given(
    network: ExportedNetwork, apply: Callable[..., object], dtype: torch.dtype, *further: int
) -> list[tuple[int, ...]]:
    """Return the shapes of the results of `apply(params, observations, ...)` for two observations."""
    zeros = functools.partial(np.zeros, dtype=str(dtype).removeprefix("torch."))
    try:
        params = {name: zeros(shape) for name, shape in network.module.inputs}
        observations = by_key(lambda each: zeros((2, *each.shape)), network.encoding)
        given = jax.eval_shape(apply, params, observations, *[zeros((2, size)) for size in further])
    except Exception as error:
        raise NotCompilable(f"The outputs of the networks do not fit the action space: {first_line(error)}") from error
    return [leaf.shape for leaf in jax.tree.leaves(given)]


def require_methods(module: nn.Module, base: type, names: Iterable[str]) -> None:
    """Refuse modules that override one of the methods of `base` that are translated by hand."""
    cls, action_dist = type(module), vars(module).get("action_dist")
    require_unreplaced(cls)
    require_unreplaced(type(action_dist))
    if action_dist is not None and has_own_methods(action_dist):
        raise NotCompilable("A method of action_dist was replaced.")
    for name in (*names, *OF_ALL_MODULES):
        if getattr(cls, name, None) is not getattr(base, name, None) or name in vars(module):
            raise NotCompilable(f"{cls.__name__} overrides {name}, which a compiled function would not call.")
    if hidden := hidden_names(module, base):
        raise NotCompilable(f"{cls.__name__} hides {min(hidden)} by an attribute of its class.")


def export_head(space: Space) -> ActionHead:
    """Return the head of a policy over an action space."""
    try:
        head = ActionHead.of(space)
    except ValueError as error:
        raise NotCompilable(str(error)) from error
    if head.start:
        raise NotCompilable(f"The actions of SB3's policies start at 0, but the action space is {space}.")
    if head.dtype == "float16":
        raise NotCompilable(f"SB3 gives environments float32, which would be rounded for the action space {space}.")
    return head


def export_exploration(
    distribution: StateDependentNoiseDistribution, squash: bool, learn_features: bool
) -> Exploration:
    """Return the settings of state-dependent exploration, if they are those that SB3 sets for such a policy."""
    if distribution.learn_features != learn_features or (distribution.bijector is not None) != squash:
        raise NotCompilable(
            "action_dist must have SB3's settings of state-dependent exploration (squash_output, learn_features), got "
            "others."
        )
    return Exploration(squash, bool(distribution.use_expln), float(distribution.epsilon), learn_features)
