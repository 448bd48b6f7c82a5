"""Networks: pure functions from parameters and observations to a distribution over actions, and values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxenvs.compilation.default_device import platform
from jaxenvs.environment import Environment
from jaxenvs.jax_names import optimization_barrier, sequential_vmap
from jaxenvs.learn.interfaces import Array, Arrays, Observation, OnPolicyNetwork, unmasked
from jaxenvs.learn.networks.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
)
from jaxenvs.learn.networks.pickling import PicklableActivation
from jaxenvs.spaces import flatten
from jaxenvs.transformations import in_any_context


@in_any_context
def orthogonal(key: jax.Array, shape: tuple[int, int], gain: float) -> jax.Array:
    """Draw an orthogonal matrix and multiply it by `gain`.

    `vmap` draws one matrix after the other. QR decompositions of a batch wait on XLA's threads for other threads, so
    that on two cores two of them at a time wait forever (jaxlib 0.10.2).
    """

    def draw(key: jax.Array) -> jax.Array:
        return jax.nn.initializers.orthogonal(gain)(key, shape, float)

    if platform() != "cpu":
        return draw(key)
    return sequential_vmap(draw)(key)


class Network(OnPolicyNetwork, Protocol):
    """Network for an on-policy algorithm. It must be hashable: functions are compiled for each network.

    A network for MaskablePPO also accepts Masked observations.
    """

    def init(self, key: jax.Array) -> Any:
        """Draw new parameters: a pytree of arrays of one dtype."""

    def apply(self, params: Any, observation: Any) -> tuple[Distribution, jax.Array]:
        """Return the distribution over actions and the values, (batch,), for a batch of observations."""

    def to_env(self, action: jax.Array) -> jax.Array:
        """Convert a batch of samples of the distribution to actions of the environments."""


@dataclasses.dataclass(frozen=True)
class ActionHead:
    """Conversion of a network's outputs to a distribution over an action space, and of samples to actions.

    Attributes:
      kind: "discrete", "multi_discrete", "multi_binary" or "box".
      shape: of an action.
      sizes: how many outputs each part of an action takes; for a Box, its dimension.
      low, high: bounds of a Box, element by element.
      start: the least member of a Discrete space.
      dtype: of the space, by its name; environments get actions in it, as far as JAX has it.
    """

    kind: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    start: int = 0
    dtype: str = "float32"

    @classmethod
    def of(cls, space: gymnasium.Space[object]) -> ActionHead:
        """Return the head for an action space.

        Raises:
          ValueError: the space is not a Discrete, MultiDiscrete (flat), MultiBinary or floating-point Box.
        """
        dtype = str(space.dtype)
        if isinstance(space, spaces.Discrete):
            return cls("discrete", (), (int(space.n),), start=int(space.start), dtype=dtype)
        if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
            return cls("multi_discrete", space.shape, tuple(space.nvec.tolist()), dtype=dtype)
        if isinstance(space, spaces.MultiBinary):
            return cls("multi_binary", space.shape, (math.prod(space.shape),), dtype=dtype)
        if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
            low, high = (tuple(bound.ravel().tolist()) for bound in (space.low, space.high))
            return cls("box", space.shape, (math.prod(space.shape),), low, high, dtype=dtype)
        raise ValueError(
            "The action space must be a Discrete, a MultiDiscrete (flat and starting at 0), a MultiBinary or a "
            f"floating-point Box to have a distribution, got {space}."
        )

    @property
    def size(self) -> int:
        """Number of outputs of the network that the head takes."""
        return sum(self.sizes)

    def distribution(self, numbers: jax.Array, log_std: jax.Array | None, mask: Array | None = None) -> Distribution:
        """Return the distribution for (batch, size) outputs and, for a Box, the log standard deviations, (size,).

        Args:
          mask: of the legal actions, for all but a Box, as its distribution's `masked` takes it; None: all are legal.
        """
        if mask is not None:
            given: Any = self.distribution(numbers, log_std)
            masked: Distribution = given.masked(mask)
            return masked
        if self.kind == "discrete":
            return Categorical(numbers)
        if self.kind == "multi_discrete":
            return MultiCategorical(numbers, self.sizes)
        if self.kind == "multi_binary":
            return Bernoulli(numbers)
        assert log_std is not None
        return DiagonalGaussian(numbers, log_std)

    def in_choices(self) -> ActionHead:
        """Return, for MultiBinary, a head that chooses each bit by two outputs, as in MaskablePPO; else this head."""
        if self.kind != "multi_binary":
            return self
        return dataclasses.replace(self, kind="multi_discrete", sizes=(2,) * self.size, dtype="int64")

    def to_env(self, action: jax.Array) -> jax.Array:
        """Convert a batch of samples to members of the space, in its dtype; samples of a Box are clipped to it."""
        if self.kind == "box":
            action = jnp.clip(action, jnp.asarray(self.low, action.dtype), jnp.asarray(self.high, action.dtype))
        action = action + self.start if self.start else action
        return action.reshape(-1, *self.shape).astype(jax.dtypes.canonicalize_dtype(self.dtype))

    def unscale(self, action: jax.Array) -> jax.Array:
        """Scale a batch of numbers in [-1, 1] to members of a Box, in its dtype."""
        low, high = (jnp.asarray(bound, action.dtype) for bound in (self.low, self.high))
        unscaled = low + 0.5 * (action + 1) * (high - low)
        return unscaled.reshape(-1, *self.shape).astype(jax.dtypes.canonicalize_dtype(self.dtype))


@dataclasses.dataclass(frozen=True)
class FlattenExtractor:
    """Features extractor that flattens observations to vectors, as `gymnasium.spaces.flatten` does.

    Discrete parts are one-hot; all parts are raveled and concatenated.

    Attributes:
      space: of observations.
    """

    space: gymnasium.Space[object]

    def __hash__(self) -> int:
        return hash(repr(self.space))  # spaces can be compared but not hashed

    @property
    def size(self) -> int:
        """Length of a vector."""
        return gymnasium.spaces.flatdim(self.space)

    def __call__(self, observation: Arrays, dtype: jax.typing.DTypeLike) -> jax.Array:
        """Return the vectors of a batch of observations, (batch, size)."""
        return jax.vmap(lambda one: flatten(self.space, one, dtype))(observation)


Activation = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class ActorCritic(PicklableActivation):
    """Separate perceptrons for actor and critic, with the shape, activation and initialization of SB3's MlpPolicy.

    Parameters have the names and the layout of SB3's `policy.state_dict()`, weights as (outputs, inputs).

    Attributes:
      extractor: the features extractor of both.
      head: for the actions.
      actor, critic: sizes of the hidden layers.
      activation: after each hidden layer.
      log_std_init: the initial log standard deviation of the Gaussian of a Box.
    """

    extractor: FlattenExtractor
    head: ActionHead
    actor: tuple[int, ...] = (64, 64)
    critic: tuple[int, ...] = (64, 64)
    activation: Activation = jnp.tanh
    log_std_init: float = 0.0

    @classmethod
    def of(cls, env: Environment[Any], **settings: Any) -> ActorCritic:
        """Return the networks for the spaces of an environment.

        Args:
          settings: the attributes after `head`.

        Raises:
          ValueError: there is no distribution for the actions.
        """
        return cls(FlattenExtractor(env.observation_space), ActionHead.of(env.action_space), **settings)

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        """Draw orthogonal weights with gain sqrt(2), or 0.01 for actions and 1 for the value; biases are 0."""
        params: dict[str, jax.Array] = {}
        layers = self._layers()
        for (name, inputs, outputs, gain), layer_key in zip(layers, jax.random.split(key, len(layers))):
            params[f"{name}.weight"] = orthogonal(layer_key, (outputs, inputs), gain)
            params[f"{name}.bias"] = jnp.zeros(outputs)
        if self.head.kind == "box":
            params["log_std"] = jnp.full(self.head.size, self.log_std_init)
        return params

    def apply(self, params: dict[str, jax.Array], observation: Observation) -> tuple[Distribution, jax.Array]:
        """Return the distribution over actions and the values, (batch,), for observations, which may be Masked."""
        observation, mask = unmasked(observation)
        pi, vf = self._inputs_of(params, observation)
        actor = self._hidden(params, "mlp_extractor.policy_net", len(self.actor), pi)
        critic = self._hidden(params, "mlp_extractor.value_net", len(self.critic), vf)
        numbers, value = linear(params, "action_net", actor), linear(params, "value_net", critic)
        return self.head.distribution(numbers, params.get("log_std"), mask), value[:, 0]

    def to_env(self, action: jax.Array) -> jax.Array:
        """Convert a batch of samples of the distribution to actions of the environments."""
        return self.head.to_env(action)

    def _inputs_of(self, params: dict[str, jax.Array], observation: Any) -> tuple[jax.Array, jax.Array]:
        """Return the inputs of the first layers of the actor and of the critic."""
        features = self.extractor(observation, params["value_net.weight"].dtype)
        return features, features

    def _hidden(self, params: dict[str, jax.Array], name: str, depth: int, x: jax.Array) -> jax.Array:
        for layer in range(depth):
            x = self.activation(linear(params, f"{name}.{2 * layer}", x))
        return x

    @property
    def _inputs(self) -> int:
        """Number of inputs of the first layers."""
        return self.extractor.size

    def _layers(self) -> list[tuple[str, int, int, float]]:
        """Return name, inputs, outputs and gain of every layer."""
        layers = []
        for name, sizes in (("policy_net", self.actor), ("value_net", self.critic)):
            inputs = (self._inputs, *sizes)
            layers += [(f"mlp_extractor.{name}.{2 * i}", inputs[i], size, math.sqrt(2)) for i, size in enumerate(sizes)]
        last_actor, last_critic = (self._inputs, *self.actor)[-1], (self._inputs, *self.critic)[-1]
        return [*layers, ("action_net", last_actor, self.head.size, 0.01), ("value_net", last_critic, 1, 1.0)]


def linear(params: Mapping[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    """Apply a linear layer with PyTorch's names and layout of weights, (outputs, inputs)."""
    return times_transposed(x, params[f"{name}.weight"]) + params[f"{name}.bias"]


# With fewer inputs than this, XLA's CPU backend computes the gradient of (outputs, inputs) weights, gradient.T @ x,
# several times slower than the gradient of their transpose, x.T @ gradient.
FEW = 32


def times_transposed(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Return `x @ weight.T`, for x of any leading axes."""
    if weight.shape[1] < FEW:
        transposed = optimization_barrier(weight.T)
        return x @ transposed  # without the barrier, XLA would undo the transposition
    return jax.lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
