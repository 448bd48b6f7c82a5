"""Networks of SB3's off-policy algorithms without their weights, as jaxenvs.learn trains them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bridge.translate.policies.exported_network import Exploration, ExportedNetwork, Params
from jaxenvs.environment import struct
from jaxenvs.learn.interfaces import Observation
from jaxenvs.learn.networks.actor_critic import ActionHead
from jaxenvs.learn.networks.distributions import SquashedGaussian, StateDependentGaussian
from jaxenvs.learn.off_policy.policies import OffPolicyPolicy, mix

# The names of the parameters of a features extractor begin with this.
EXTRACTOR = "features_extractor."

# Parameters of several networks, end to end, by the names of the networks.
Vectors = Mapping[str, jax.Array]


@struct
class Deterministic:
    """Distribution of a policy that draws nothing. `action`: a batch."""

    action: jax.Array

    def sample(self, noise: object) -> jax.Array:
        return self.action

    def mode(self) -> jax.Array:
        return self.action


@dataclasses.dataclass(frozen=True)
class ExportedNumbers(ExportedNetwork):
    """Network that draws nothing, so that its numbers determine the actions.

    Attributes:
      head: of the actions.
    """

    exploration: ClassVar[None] = None
    head: ActionHead

    def apply(self, params: Params, observation: Observation) -> jax.Array:
        """Return the values of each action, or the actions in [-1, 1], (batch, n), for a batch of observations.

        Args:
          params: by name, or as a vector. Everything is computed in their dtype.
          observation: as `ExportedNetwork.numbers` takes it.
        """
        numbers: jax.Array = self.numbers(self.named(params), observation)
        return numbers

    def shape(self, batch: int) -> tuple[int, ...]:
        """Return the shape of the results of `apply` for a batch."""
        return batch, self.head.size


class ExportedQNetwork(ExportedNumbers):
    """Network of a DQNPolicy that computes the values of actions."""

    def values(self, params: Params, observation: Observation) -> jax.Array:
        """Return the value of each action, (batch, n)."""
        return self.apply(params, observation)

    def distribution(self, params: Params, observation: Observation) -> Deterministic:
        """Return the greedy actions. SB3's algorithm explores, not its policy."""
        return Deterministic(jnp.argmax(self.values(params, observation), axis=-1).astype(jnp.int32))

    def to_env(self, action: jax.Array) -> jax.Array:
        """Return a batch of actions in the dtype of their space."""
        return self.head.to_env(action)


@dataclasses.dataclass(frozen=True)
class ExportedQuantileNetwork(ExportedQNetwork):
    """Network of a QRDQNPolicy that computes quantiles of the returns of actions.

    Attributes:
      n_quantiles: of each action.
    """

    n_quantiles: int

    def apply(self, params: Params, observation: Observation) -> jax.Array:
        """Return the quantiles of each action, (batch, n_quantiles, n), with the arguments of ExportedNumbers."""
        return super().apply(params, observation).reshape(-1, self.n_quantiles, self.head.size)

    def values(self, params: Params, observation: Observation) -> jax.Array:
        """Return the mean of each action's quantiles, (batch, n)."""
        return self.apply(params, observation).mean(axis=1)

    def shape(self, batch: int) -> tuple[int, ...]:
        """Return the shape of the results of `apply` for a batch."""
        return batch, self.n_quantiles, self.head.size


class ExportedTD3Actor(ExportedNumbers):
    """Actor of a TD3Policy."""

    def distribution(self, params: Params, observation: Observation) -> Deterministic:
        """Return the actions. SB3's algorithm adds noise, not its policy."""
        return Deterministic(self.apply(params, observation))

    def to_env(self, action: jax.Array) -> jax.Array:
        """Return a batch of actions in [-1, 1] as members of their space, in its dtype."""
        return self.head.unscale(action)


@dataclasses.dataclass(frozen=True)
class ExportedSACActor(ExportedNetwork):
    """Actor of a SACPolicy or a TQCPolicy.

    Attributes:
      head: of the actions.
      exploration: settings of state-dependent exploration; None without it.
    """

    has_statistics: ClassVar[bool] = False
    head: ActionHead
    exploration: Exploration | None

    def apply(self, params: Params, observation: Observation) -> SquashedGaussian | StateDependentGaussian:
        """Return the distribution over actions in [-1, 1] for a batch of observations.

        Args:
          params: by name, or as a vector. Everything is computed in their dtype.
          observation: as `ExportedNetwork.numbers` takes it.
        """
        return self._distribution(self.named(params), observation)

    def _distribution(
        self, params: Mapping[str, jax.Array], observation: Observation, **options: Any
    ) -> SquashedGaussian | StateDependentGaussian:
        mean, other = self.numbers(params, observation, **options)
        if self.exploration is None:
            return SquashedGaussian(mean, other)
        return StateDependentGaussian(mean, other, params["log_std"], **dataclasses.asdict(self.exploration))

    distribution = apply

    def shape(self, batch: int) -> tuple[int, ...]:
        """Return the shape of the actions for a batch."""
        return batch, self.head.size

    def to_env(self, action: jax.Array) -> jax.Array:
        """Return a batch of actions in [-1, 1] as members of their space, in its dtype."""
        return self.head.unscale(action)


@dataclasses.dataclass(frozen=True)
class ExportedCritic(ExportedNetwork):
    """Critics of a SACPolicy or a TD3Policy.

    Attributes:
      head: of the actions.
      n_critics: how many there are.
      shares: whether they share the features extractor with the actor, whose loss alone trains it. The parameters of
        the extractor come first.
    """

    head: ActionHead
    n_critics: int
    shares: bool

    def apply(self, params: Params, observation: Observation, action: jax.Array) -> jax.Array:
        """Return the values, (n_critics, batch), of a batch of observations and of actions in [-1, 1].

        Args:
          params: by name, or as a vector, including a shared extractor. Everything is computed in their dtype.
          observation: as `ExportedNetwork.numbers` takes it.
        """
        return jnp.stack([value[:, 0] for value in self.outputs(params, observation, action)])

    def outputs(
        self, params: Params, observation: Observation, action: jax.Array, **options: Any
    ) -> tuple[jax.Array, ...]:
        """Return the numbers of each critic, (batch, n)."""
        given: tuple[jax.Array, ...]
        given = self.numbers(self.named(params), observation, action.reshape(action.shape[0], -1), **options)
        return given

    def shape(self, batch: int) -> tuple[int, ...]:
        """Return the shape of the results of `apply` for a batch."""
        return self.n_critics, batch


@dataclasses.dataclass(frozen=True)
class ExportedQuantileCritic(ExportedCritic):
    """Critics of a TQCPolicy.

    Attributes:
      n_quantiles: of each critic.
    """

    n_quantiles: int

    def apply(self, params: Params, observation: Observation, action: jax.Array) -> jax.Array:
        """Return the quantiles, (n_critics, n_quantiles, batch), with the arguments of ExportedCritic."""
        return jnp.stack([numbers.T for numbers in self.outputs(params, observation, action)])

    def shape(self, batch: int) -> tuple[int, ...]:
        """Return the shape of the results of `apply` for a batch."""
        return self.n_critics, self.n_quantiles, batch


ExportedActor = ExportedQNetwork | ExportedSACActor | ExportedTD3Actor


@dataclasses.dataclass(frozen=True)
class ExportedDQNPolicy(OffPolicyPolicy):
    """DQNPolicy without its weights."""

    q_net: ExportedQNetwork
    head: ActionHead


@dataclasses.dataclass(frozen=True)
class ExportedQRDQNPolicy(OffPolicyPolicy):
    """QRDQNPolicy without its weights."""

    quantile_net: ExportedQuantileNetwork
    head: ActionHead


@dataclasses.dataclass(frozen=True)
class ExportedSACPolicy(OffPolicyPolicy):
    """SACPolicy or TQCPolicy without its weights. All parameters are vectors here.

    If the critic shares its features extractor, its vector has only the rest, which its optimizer trains. SB3 gives the
    target of the critic a separate extractor, so the target's vector has everything.
    """

    actor: ExportedSACActor
    critic: ExportedCritic
    head: ActionHead

    def critic_params(self, params: Vectors) -> jax.Array:
        """Return all parameters of the critic, from the parameters of the policy, as OffPolicyPolicy requires."""
        return _critic_params(self.actor, self.critic, params["actor"], params["critic"])

    def polyak(self, targets: Vectors, params: Vectors, tau: float | jax.Array) -> dict[str, jax.Array]:
        """Return the targets after a Polyak update: moved by a share `tau` to the parameters."""
        return {"critic_target": mix(targets["critic_target"], self.critic_params(params), tau)}


@dataclasses.dataclass(frozen=True)
class ExportedTD3Policy(OffPolicyPolicy):
    """TD3Policy without its weights. All parameters are vectors here.

    If the critic shares its features extractor, its vector and the vector of its target have only the rest.
    """

    actor: ExportedTD3Actor
    critic: ExportedCritic
    head: ActionHead

    def critic_params(self, params: Vectors) -> jax.Array:
        """Return all parameters of the critic, from the parameters of the policy, as OffPolicyPolicy requires."""
        return _critic_params(self.actor, self.critic, params["actor"], params["critic"])

    def critic_target_params(self, targets: Vectors) -> jax.Array:
        """Return all parameters of the critic's target, from the targets of the policy, as OffPolicyPolicy requires."""
        return _critic_params(self.actor, self.critic, targets["actor_target"], targets["critic_target"])

    def polyak(self, targets: Vectors, params: Vectors, tau: float | jax.Array) -> dict[str, jax.Array]:
        """Return the targets after a Polyak update: moved by a share `tau` to the parameters."""
        critic = mix(targets["critic_target"], params["critic"], tau)
        actor = targets["actor_target"]
        if self.critic.shares:
            # SB3 updates the critic's target and then the actor's. Shared parameters are in both, so they move twice.
            start, end = _extractor(self.actor)
            shared = mix(actor[start:end], params["actor"][start:end], tau)
            actor = jnp.concatenate([actor[:start], shared, actor[end:]])
        return {"actor_target": mix(actor, params["actor"], tau), "critic_target": critic}


ExportedOffPolicy = ExportedDQNPolicy | ExportedQRDQNPolicy | ExportedSACPolicy | ExportedTD3Policy


def _critic_params(actor: ExportedNetwork, critic: ExportedCritic, shared: jax.Array, own: jax.Array) -> jax.Array:
    """Return all parameters of a critic, from the actor's and the critic's vectors."""
    if not critic.shares:
        return own
    start, end = _extractor(actor)
    return jnp.concatenate([shared[start:end], own])


def _extractor(network: ExportedNetwork) -> tuple[int, int]:
    """Return where the features extractor is in the vector: PyTorch names its parameters one after the other."""
    sizes = [math.prod(shape) for name, shape in network.module.parameters if name.startswith(EXTRACTOR)]
    before = itertools.takewhile(lambda each: not each[0].startswith(EXTRACTOR), network.module.parameters)
    start = sum(math.prod(shape) for _, shape in before)
    return start, start + sum(sizes)
