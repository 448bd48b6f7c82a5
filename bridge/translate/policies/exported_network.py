"""ExportedNetwork, the base of all translated networks: encoded observations and a module, without weights."""

from __future__ import annotations

import dataclasses
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

from bridge.errors import NotCompilable
from bridge.sb3 import Space
from bridge.translate.pytorch.modules import ExportedModule, export_module
from bridge.translate.pytorch.tracing import Computation, first_line, require_unreplaced
from jaxenvs.learn import Masked, Recalled
from jaxenvs.learn.networks.actor_critic import ActionHead

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
        """Return encoded observations, (batch, *encoded_shape). Observations of a Discrete space may be (batch,) or
        (batch, 1).
        """
        if self.nvec:
            numbers = observation.reshape(-1, len(self.nvec)).astype(jnp.int32)
            one_hot = [jax.nn.one_hot(numbers[:, i], n, dtype=dtype) for i, n in enumerate(self.nvec)]
            return jnp.concatenate(one_hot, axis=1)
        return observation.astype(dtype) / 255 if self.is_image else observation.astype(dtype)

    def from_host(self, observation: Any) -> Any:
        """Check and convert observations before a compiled function gets them, which can do neither.

        Args:
          observation: an array with any leading axes.

        Returns:
          The observations, with 64-bit integers of a Box as float32, as SB3's policies convert them.

        Raises:
          RuntimeError: a class is out of range, with the message of `torch.nn.functional.one_hot`. `jax.nn.one_hot`
            gives zeros.
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


def from_host(encoding: Encoding | tuple[tuple[str, Encoding], ...], observation: Any) -> Any:
    """Check and convert the observations of a space, or of each key of a Dict space, as `Encoding.from_host` does.

    A compiled function can do neither: classes must be in range, and 64-bit integers of a Box become float32.
    """
    if isinstance(encoding, Encoding):
        return encoding.from_host(observation)
    return {key: part.from_host(observation[key]) for key, part in encoding}


def export_encoding(space: Space, normalize_images: bool) -> Encoding | tuple[tuple[str, Encoding], ...]:
    """Return how SB3 encodes observations; for a Dict space, of each key.

    Raises:
      NotCompilable: there is no translation for observations of this space.
    """
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

    Attributes:
      encoding: of observations; for a Dict space, of each key.
      module: maps encoded observations to numbers. It has the parameters of `named_parameters()`.
    """

    encoding: Encoding | tuple[tuple[str, Encoding], ...]
    module: ExportedModule

    def unravel(self, vector: jax.Array) -> dict[str, jax.Array]:
        """Return all parameters by name, in PyTorch's layout, from one vector. The statistics may follow them there."""
        return self.module.unravel(vector)

    def named(self, params: Params) -> Mapping[str, jax.Array]:
        """Return parameters by name, from such or from a vector."""
        return params if isinstance(params, Mapping) else self.unravel(params)

    def numbers(self, params: Mapping[str, jax.Array], observation: Any, *further: jax.Array, **options: Any) -> Any:
        """Return what the module computes for a batch of observations, in the dtype of the parameters.

        Args:
          params: by name.
          observation: as SB3's policies take it: images with their channels first; of a Discrete space, (batch,) or
            (batch, 1).
          further: arrays that the module takes after the observations.
          options: `instead`, as for a Computation: functions that replace some operations.
        """
        dtype = next(iter(params.values())).dtype
        if isinstance(self.encoding, Encoding):
            encoded: jax.Array | dict[str, jax.Array] = self.encoding(observation, dtype)
        else:
            encoded = {key: encoding(observation[key], dtype) for key, encoding in self.encoding}
        return self.module(params, encoded, *(array.astype(dtype) for array in further), **options)

    def from_host(self, observation: Any) -> Any:
        """Check and convert observations, which may be Masked or Recalled, as `Encoding.from_host` does."""
        if isinstance(observation, Masked | Recalled):
            return dataclasses.replace(observation, observation=self.from_host(observation.observation))
        return from_host(self.encoding, observation)

    def two_observations(self, dtype: str) -> Any:
        """Return a batch of two observations of zeros, to try what the network returns."""
        encoding = self.encoding if isinstance(self.encoding, Encoding) else dict(self.encoding)
        return jax.tree.map(lambda each: np.zeros((2, *each.shape), dtype), encoding)


# Parameters by name, or end to end as a vector.
Params = Mapping[str, jax.Array] | jax.Array
Encoded = torch.Tensor | dict[str, torch.Tensor]

# What each network has computed until now: a new computation whenever a number that its code reads has changed.
_COMPUTATIONS: WeakKeyDictionary[nn.Module, set[Computation]] = WeakKeyDictionary()
# For each new one, functions are compiled anew, which takes longer than what they save.
MOST_COMPUTATIONS = 5


def keeps_changing(policy: nn.Module) -> bool:
    """Return whether numbers that the code of a policy's networks reads change repeatedly, such as annealed ones."""
    return any(len(_COMPUTATIONS.get(part, ())) > MOST_COMPUTATIONS for part in policy.modules())


class Parts(nn.Module):
    """Module with the parts and parameters of another module and a separate forward, which tracing follows."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        # Not as a submodule, so that parts and parameters keep the names that they have in the module.
        self._modules, self._parameters, self._buffers = module._modules, module._parameters, module._buffers


def export_parts(
    network: BaseModel, parts: Parts, *further: int, has_statistics: bool = False
) -> tuple[Any, ExportedModule]:
    """Return the encoding of a network's observations, and its parts as a translated module.

    Args:
      further: sizes of the vectors that the forward of `parts` takes after the observations.
      has_statistics: whether the caller handles running statistics, as in `export_module`.

    Raises:
      NotCompilable: something has no translation.
    """
    encoding = export_encoding(network.observation_space, network.normalize_images)

    def example(*shape: int) -> torch.Tensor:
        return torch.zeros((1, *shape), device=network.device)

    if isinstance(encoding, Encoding):
        encoded: Encoded = example(*encoding.encoded_shape)
    else:
        encoded = {key: example(*part.encoded_shape) for key, part in encoding}
    module = export_module(parts, encoded, *map(example, further), has_statistics=has_statistics)
    _COMPUTATIONS.setdefault(network, set()).add(module.computation)
    return encoding, module


def shapes_given(
    network: ExportedNetwork, apply: Callable[..., Any], dtype: str, *further: int
) -> list[tuple[int, ...]]:
    """Return the shapes of the results of `apply(params, observations, ...)` for two observations.

    Raises:
      NotCompilable: it fails.
    """
    vectors = [np.zeros((2, size), dtype) for size in further]
    try:
        params = {name: np.zeros(shape, dtype) for name, shape in network.module.inputs}
        given = jax.eval_shape(apply, params, network.two_observations(dtype), *vectors)
    except Exception as error:
        raise NotCompilable(f"The outputs of the networks do not fit the action space: {first_line(error)}") from error
    return [leaf.shape for leaf in jax.tree.leaves(given)]


def require_methods(module: nn.Module, base: type, names: Iterable[str]) -> None:
    """Refuse modules that override something that is translated by hand.

    Args:
      base: the class of SB3 whose methods are translated.
      names: of these methods.

    Raises:
      NotCompilable: the module has another method with such a name, or one was put into its class.
    """
    cls = type(module)
    require_unreplaced(cls)
    require_unreplaced(type(vars(module).get("action_dist")))
    for name in names:
        if getattr(cls, name) is not getattr(base, name) or name in vars(module):
            raise NotCompilable(f"{cls.__name__} overrides {name}, which a compiled function would not call.")


def export_head(space: Space) -> ActionHead:
    """Return the head of a policy over an action space.

    Raises:
      NotCompilable: there is no translation of policies whose actions are of this space.
    """
    try:
        head = ActionHead.of(space)
    except ValueError as error:
        raise NotCompilable(str(error)) from error
    if head.start:
        raise NotCompilable(f"The actions of SB3's policies start at 0, but the action space is {space}.")
    return head


def export_exploration(
    distribution: StateDependentNoiseDistribution, squash: bool, learn_features: bool
) -> Exploration:
    """Return the settings of state-dependent exploration, if they are SB3's.

    Args:
      squash, learn_features: what SB3 sets for such a policy.

    Raises:
      NotCompilable: the distribution has other settings.
    """
    if distribution.learn_features != learn_features or (distribution.bijector is not None) != squash:
        raise NotCompilable(
            "action_dist must have SB3's settings of state-dependent exploration (squash_output, learn_features), got "
            "others."
        )
    return Exploration(squash, bool(distribution.use_expln), float(distribution.epsilon), learn_features)
