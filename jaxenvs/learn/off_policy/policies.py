"""Networks of off-policy algorithms: Q-networks, actors and critics, with SB3's MlpPolicy's shape and initialization.

Parameters have the names and the layout of SB3's `state_dict()` of each network, weights as (outputs, inputs).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import Environment
from jaxenvs.learn.interfaces import Arrays, Real
from jaxenvs.learn.networks.actor_critic import ActionHead, Activation, FlattenExtractor, linear
from jaxenvs.learn.networks.distributions import SquashedGaussian
from jaxenvs.learn.networks.pickling import PicklableActivation

# Bounds of the log standard deviation; SB3's.
LOG_STD_MIN, LOG_STD_MAX = -20, 2

Params = dict[str, jax.Array]
Layers = tuple[int, ...]


class OffPolicyPolicy:
    """Base class of the networks of an off-policy algorithm, by their names in SB3's policies.

    Subclasses are hashable, because functions are compiled for each, and have the networks as attributes:
    `q_net.apply(params, observation)` -> (batch, n); `actor.apply(params, observation)` -> a Distribution (SAC) or an
    action in [-1, 1] (TD3); `critic.apply(params, observation, action)` -> (n_critics, batch).

    Attributes:
      head: the ActionHead of the action space.

    `params` and `targets` are dicts by the name of a network. During training, each holds one vector. Networks that
    share parameters override `critic_params`, `critic_target_params` and `polyak`.
    """

    head: ActionHead
    q_net: Any  # each subclass has some of these
    quantile_net: Any
    actor: Any
    critic: Any

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Draw new parameters, by the name of the network."""
        raise NotImplementedError(f"{type(self).__name__} does not define init.")

    def to_env(self, action: jax.Array) -> jax.Array:
        """Convert a batch of actions, as the store holds them, to members of the space."""
        return self.head.unscale(action) if self.head.kind == "box" else self.head.to_env(action)

    def critic_params(self, params: Mapping[str, Any]) -> Any:
        """Return the argument of `critic.apply`. Gradients of the critics' loss change `params["critic"]` alone."""
        return params["critic"]

    def critic_target_params(self, targets: Mapping[str, Any]) -> Any:
        """Return the argument of `critic.apply`, from the parameters of the target networks."""
        return targets["critic_target"]

    def polyak(self, targets: Mapping[str, Any], params: Mapping[str, Any], tau: Any) -> dict[str, Any]:
        """Return the targets after a Polyak update with share `tau` of the parameters."""
        return {
            name: polyak_update(target, params[name.removesuffix("_target")], tau) for name, target in targets.items()
        }


def polyak_update(target: Any, params: Any, tau: Real) -> Any:
    """Apply a Polyak update: a share `tau` of the parameters and the rest of the target."""
    # Not (1 - tau) * target + tau * params: compilers round one of two products only once, and not always the same one.
    return jax.tree.map(lambda old, new: old - tau * old + tau * new, target, params)


@dataclasses.dataclass(frozen=True)
class Perceptron(PicklableActivation):
    """Linear layers with activations between them.

    Attributes:
      name: prefix of the numbers of the layers.
      sizes: inputs, hidden layers, outputs.
      activation: after each hidden layer; `is_hidden`: after the last one, too.
    """

    name: str
    sizes: tuple[int, ...]
    activation: Activation = jax.nn.relu
    is_hidden: bool = False

    def init(self, key: jax.Array) -> Params:
        """Draw parameters with PyTorch's default: uniform weights and biases up to 1 / sqrt(inputs)."""
        params: Params = {}
        for index, layer_key in enumerate(jax.random.split(key, max(len(self.sizes) - 1, 1))[: len(self.sizes) - 1]):
            params |= init_linear(layer_key, f"{self.name}.{2 * index}", *self.sizes[index : index + 2])
        return params

    def apply(self, params: Params, x: jax.Array) -> jax.Array:
        """Map (batch, sizes[0]) to (batch, sizes[-1])."""
        num_layers = len(self.sizes) - 1
        for index in range(num_layers):
            x = linear(params, f"{self.name}.{2 * index}", x)
            x = self.activation(x) if index < num_layers - 1 or self.is_hidden else x
        return x


def init_linear(key: jax.Array, name: str, inputs: int, outputs: int) -> Params:
    """Draw a linear layer's parameters as PyTorch does: uniform up to 1 / sqrt(inputs)."""
    bound = 1 / math.sqrt(inputs)
    weight_key, bias_key = jax.random.split(key)
    return {
        f"{name}.weight": jax.random.uniform(weight_key, (outputs, inputs), float, -bound, bound),
        f"{name}.bias": jax.random.uniform(bias_key, (outputs,), float, -bound, bound),
    }


def _dtype(params: Params) -> np.dtype:
    return next(iter(params.values())).dtype


@dataclasses.dataclass(frozen=True)
class QNetwork:
    """Network for the values of all actions, (batch, n)."""

    extractor: FlattenExtractor
    perceptron: Perceptron

    def init(self, key: jax.Array) -> Params:
        return self.perceptron.init(key)

    def apply(self, params: Params, observation: Arrays) -> jax.Array:
        return self.perceptron.apply(params, self.extractor(observation, _dtype(params)))


@dataclasses.dataclass(frozen=True)
class SquashedActor:
    """SAC's actor: a SquashedGaussian, with mean and standard deviation from the last hidden layer."""

    extractor: FlattenExtractor
    latent_pi: Perceptron
    size: int

    def init(self, key: jax.Array) -> Params:
        keys, inputs = jax.random.split(key, 3), self.latent_pi.sizes[-1]
        mu, log_std = (init_linear(k, name, inputs, self.size) for k, name in zip(keys, ("mu", "log_std")))
        return self.latent_pi.init(keys[2]) | mu | log_std

    def apply(self, params: Params, observation: Arrays) -> SquashedGaussian:
        return self.distribution(params, self.latent_pi.apply(params, self.extractor(observation, _dtype(params))))

    def distribution(self, params: Params, latent: jax.Array) -> SquashedGaussian:
        """Return the distribution, given the last hidden layer."""
        log_std = jnp.clip(linear(params, "log_std", latent), LOG_STD_MIN, LOG_STD_MAX)
        return SquashedGaussian(linear(params, "mu", latent), log_std)


@dataclasses.dataclass(frozen=True)
class DeterministicActor:
    """TD3's actor: an action in [-1, 1], (batch, n)."""

    extractor: FlattenExtractor
    mu: Perceptron

    def init(self, key: jax.Array) -> Params:
        return self.mu.init(key)

    def apply(self, params: Params, observation: Arrays) -> jax.Array:
        return jnp.tanh(self.mu.apply(params, self.extractor(observation, _dtype(params))))


@dataclasses.dataclass(frozen=True)
class ContinuousCritic:
    """Critics for the values of observations and actions in [-1, 1], by several perceptrons: (n_critics, batch)."""

    extractor: FlattenExtractor
    q_networks: tuple[Perceptron, ...]

    def init(self, key: jax.Array) -> Params:
        params: Params = {}
        for network, network_key in zip(self.q_networks, jax.random.split(key, len(self.q_networks))):
            params |= network.init(network_key)
        return params

    def apply(self, params: Params, observation: Arrays, action: jax.Array) -> jax.Array:
        return jnp.stack([numbers[:, 0] for numbers in self.outputs(params, observation, action)])

    def outputs(self, params: Params, observation: Arrays, action: jax.Array) -> list[jax.Array]:
        """Return the output of each perceptron, (batch, n)."""
        features = self.extractor(observation, _dtype(params))
        x = jnp.concatenate([features, action.reshape(len(action), -1).astype(features.dtype)], axis=1)
        # One after the other: XLA's CPU backend is slower with a batch of products than with single products.
        return [network.apply(params, x) for network in self.q_networks]


@dataclasses.dataclass(frozen=True)
class DQNPolicy(OffPolicyPolicy):
    """Q-network for Discrete actions.

    Attributes:
      q_net: the values of all actions.
    """

    q_net: QNetwork
    head: ActionHead

    @classmethod
    def of(
        cls, env: Environment[Any], net_arch: tuple[int, ...] = (64, 64), activation: Activation = jax.nn.relu
    ) -> Self:
        """Return the network for the spaces of an environment.

        Args:
          net_arch: sizes of the hidden layers.
          activation: after each hidden layer.

        Raises:
          ValueError: actions are not Discrete.
        """
        extractor, head = spaces_of(cls.__name__, env, "discrete")
        return cls(QNetwork(extractor, Perceptron("q_net", (extractor.size, *net_arch, head.size), activation)), head)

    def init(self, key: jax.Array) -> dict[str, Params]:
        return {"q_net": self.q_net.init(key)}


@dataclasses.dataclass(frozen=True)
class ActorCriticPolicy(OffPolicyPolicy):
    """Actor, and critics of its actions.

    Attributes:
      actor: from observations to actions.
      critic: from observations and actions to values.
    """

    actor: Any
    critic: ContinuousCritic
    head: ActionHead

    def init(self, key: jax.Array) -> dict[str, Any]:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": self.actor.init(actor_key), "critic": self.critic.init(critic_key)}


class SACPolicy(ActorCriticPolicy):
    """Stochastic actor and critics, for actions of a Box."""

    @classmethod
    def of(
        cls,
        env: Environment[Any],
        net_arch: tuple[int, ...] | Mapping[str, tuple[int, ...]] = (256, 256),
        activation: Activation = jax.nn.relu,
        n_critics: int = 2,
    ) -> Self:
        """Return the networks for the spaces of an environment.

        Args:
          net_arch: hidden layers of the actor and of the critics, or of each under "pi" and "qf".
          activation: after each hidden layer.
          n_critics: the number of critics.

        Raises:
          ValueError: actions are not of a Box with bounds.
        """
        extractor, head = spaces_of(cls.__name__, env, "box")
        pi, qf = _net_arch(net_arch)
        latent_pi = Perceptron("latent_pi", (extractor.size, *pi), activation, is_hidden=True)
        actor = SquashedActor(extractor, latent_pi, head.size)
        return cls(actor, _critic(extractor, head, qf, activation, n_critics), head)


class TD3Policy(ActorCriticPolicy):
    """Deterministic actor and critics, for actions of a Box."""

    @classmethod
    def of(
        cls,
        env: Environment[Any],
        net_arch: tuple[int, ...] | Mapping[str, tuple[int, ...]] = (400, 300),
        activation: Activation = jax.nn.relu,
        n_critics: int = 2,
    ) -> Self:
        """Return the networks for the spaces of an environment, with the arguments of SACPolicy.of.

        With `n_critics=1`, these are the networks of DDPG.
        """
        extractor, head = spaces_of(cls.__name__, env, "box")
        pi, qf = _net_arch(net_arch)
        actor = DeterministicActor(extractor, Perceptron("mu", (extractor.size, *pi, head.size), activation))
        return cls(actor, _critic(extractor, head, qf, activation, n_critics), head)


def _critic(
    extractor: FlattenExtractor, head: ActionHead, hidden: tuple[int, ...], activation: Activation, n_critics: int
) -> ContinuousCritic:
    sizes = (extractor.size + head.size, *hidden, 1)
    return ContinuousCritic(extractor, tuple(Perceptron(f"qf{i}", sizes, activation) for i in range(n_critics)))


def _net_arch(net_arch: Layers | Mapping[str, Layers]) -> tuple[Layers, Layers]:
    pi, qf = (net_arch["pi"], net_arch["qf"]) if isinstance(net_arch, Mapping) else (net_arch, net_arch)
    return tuple(pi), tuple(qf)


def spaces_of(name: str, env: Environment[Any], kind: str) -> tuple[FlattenExtractor, ActionHead]:
    """Return the extractor of observations, and the head for the actions."""
    head = ActionHead.of(env.action_space)
    if head.kind != kind or not np.isfinite([head.low, head.high]).all():
        expected = "a Discrete action space" if kind == "discrete" else "a Box action space with bounds"
        raise ValueError(f"{name} needs {expected}, got {env.action_space}.")
    return FlattenExtractor(env.observation_space), head
