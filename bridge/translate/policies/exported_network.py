"""ExportedNetwork, which the translations of SB3's policies share: encoded observations, a module, and no weights."""

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
    """How observations of one space are encoded.

    Attributes:
      shape: of an observation.
      nvec: of Discrete and MultiDiscrete, whose numbers become so many one-hot vectors, end to end.
      is_image: numbers are divided by 255.
    """

    shape: tuple[int, ...]
    nvec: tuple[int, ...] = ()
    is_image: bool = False

    def __call__(self, observation: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
        """(batch, *encoded_shape) numbers. Observations of a Discrete space may be (batch,) or (batch, 1)."""
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
    """Check and convert the observations of a space, or of each key of a Dict space: see `Encoding.from_host`."""
    if isinstance(encoding, Encoding):
        return encoding.from_host(observation)
    return {key: part.from_host(observation[key]) for key, part in encoding}


def export_encoding(space: Space, normalize_images: bool) -> Encoding | tuple[tuple[str, Encoding], ...]:
    """How SB3 encodes observations; of a Dict space, for each key.

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
    """The settings of state-dependent exploration, as those of StateDependentGaussian."""

    squash: bool
    expln: bool
    epsilon: float
    learn_features: bool


@dataclasses.dataclass(frozen=True)
class ExportedNetwork:
    """A network without its weights. Those of equal architecture are equal, and share compiled programs.

    Attributes:
      encoding: of observations; of a Dict space, for each key.
      module: with the parameters of `named_parameters()`, from encoded observations to numbers.
    """

    encoding: Encoding | tuple[tuple[str, Encoding], ...]
    module: ExportedModule

    def unravel(self, vector: jax.Array) -> dict[str, jax.Array]:
        """All parameters by name, in PyTorch's layout, from one vector, in which the statistics may follow them."""
        return self.module.unravel(vector)

    def named(self, params: Params) -> Mapping[str, jax.Array]:
        """Parameters by name, given so or as a vector."""
        return params if isinstance(params, Mapping) else self.unravel(params)

    def numbers(self, params: Mapping[str, jax.Array], observation: Any, *further: jax.Array, **options: Any) -> Any:
        """What the module gives for a batch of observations, computed in the dtype of the parameters.

        Args:
          params: by name.
          observation: as SB3's policies take it: images with their channels first; of a Discrete space, (batch,) or
            (batch, 1).
          further: arrays that the module takes after the observations.
          options: see Computation.
        """
        dtype = next(iter(params.values())).dtype
        if isinstance(self.encoding, Encoding):
            encoded: jax.Array | dict[str, jax.Array] = self.encoding(observation, dtype)
        else:
            encoded = {key: encoding(observation[key], dtype) for key, encoding in self.encoding}
        return self.module(params, encoded, *(array.astype(dtype) for array in further), **options)

    def from_host(self, observation: Any) -> Any:
        """Check and convert observations, which may be Masked or Recalled: see `Encoding.from_host`."""
        if isinstance(observation, Masked | Recalled):
            return dataclasses.replace(observation, observation=self.from_host(observation.observation))
        return from_host(self.encoding, observation)

    def two_observations(self, dtype: str) -> Any:
        """A batch of zeros, to try what the network gives."""
        encoding = self.encoding if isinstance(self.encoding, Encoding) else dict(self.encoding)
        return jax.tree.map(lambda each: np.zeros((2, *each.shape), dtype), encoding)


# Parameters by name, or end to end as a vector.
Params = Mapping[str, jax.Array] | jax.Array
Encoded = torch.Tensor | dict[str, torch.Tensor]

# What each network has computed until now: it is another computation when a number that its code reads has changed.
_COMPUTATIONS: WeakKeyDictionary[nn.Module, set[Computation]] = WeakKeyDictionary()
# With each further one programs are compiled anew, which takes longer than what they save.
MOST_COMPUTATIONS = 5


def keeps_changing(policy: nn.Module) -> bool:
    """Whether numbers that the code of a policy's networks reads change again and again, as some that are annealed."""
    return any(len(_COMPUTATIONS.get(part, ())) > MOST_COMPUTATIONS for part in policy.modules())


class Parts(nn.Module):
    """A module with the parts and parameters of another and a forward of its own, which tracing follows."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        # Not as a submodule, so that parts and parameters have their names in the module.
        self._modules, self._parameters, self._buffers = module._modules, module._parameters, module._buffers


def export_parts(
    network: BaseModel, parts: Parts, *further: int, has_statistics: bool = False
) -> tuple[Any, ExportedModule]:
    """The encoding of a network's observations, and the module that its parts are.

    Args:
      further: sizes of the vectors that the forward of `parts` takes after the observations.
      has_statistics: see `export_module`.

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
    """The shapes of what `apply(params, observations, ...)` gives for two observations.

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
    """Refuse modules that do something in a way of their own.

    Args:
      base: the class of SB3 whose methods are translated.
      names: of these methods.

    Raises:
      NotCompilable: the module has another method of such a name, or one was put into its class.
    """
    cls = type(module)
    require_unreplaced(cls)
    require_unreplaced(type(vars(module).get("action_dist")))
    for name in names:
        if getattr(cls, name) is not getattr(base, name) or name in vars(module):
            raise NotCompilable(f"{cls.__name__} overrides {name}, which a compiled function would not call.")


def export_head(space: Space) -> ActionHead:
    """The head of a policy over an action space.

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
    """The settings of a state-dependent exploration that is SB3's.

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
