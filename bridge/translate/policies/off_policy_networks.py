"""Networks of SB3's off-policy algorithms without their weights, as jaxenvs.learn trains them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from bridge.translate.policies.exported_network import Exploration, ExportedNetwork
from bridge.translate.pytorch.modules import Parameters, Params, aligned
from jaxenvs.environment import struct
from jaxenvs.learn.interfaces import Observation
from jaxenvs.learn.networks.actor_critic import ActionHead
from jaxenvs.learn.networks.distributions import SquashedGaussian, StateDependentGaussian
from jaxenvs.learn.off_policy.contrib.batch_renorm import BatchStatistics
from jaxenvs.learn.off_policy.policies import OffPolicyPolicy, polyak_update

# The names of the parameters of a features extractor begin with this.
EXTRACTOR = "features_extractor."

# Parameters of several networks, end to end, by the names of the networks.
Vectors = Mapping[str, Parameters]


@struct
class Deterministic:
    """Distribution of a policy that draws nothing. `action`: a batch."""

    action: jax.Array

    def mode(self) -> jax.Array:
        return self.action


class ExportedNumbers(ExportedNetwork):
    """Network that draws nothing, so that its numbers determine the actions."""

    exploration: ClassVar[None] = None

    def apply(self, params: Params, observation: Observation) -> jax.Array:
        """Return the values of each action, or the actions in [-1, 1], (batch, n)."""
        numbers: jax.Array = self.numbers(self.named(params), observation)
        return numbers


class ExportedQNetwork(ExportedNumbers):
    """Network of a DQNPolicy that computes the values of actions."""

    def values(self, params: Params, observation: Observation) -> jax.Array:
        """Return the value of each action, (batch, n)."""
        return self.apply(params, observation)

    def distribution(self, params: Params, observation: Observation) -> Deterministic:
        """Return the greedy actions. SB3's algorithm explores, not its policy."""
        return Deterministic(jnp.argmax(self.values(params, observation), axis=-1).astype(jnp.int32))


@dataclasses.dataclass(frozen=True)
class ExportedQuantileNetwork(ExportedQNetwork):
    """Network of a QRDQNPolicy that computes `n_quantiles` quantiles of the returns of each action."""

    n_quantiles: int

    def apply(self, params: Params, observation: Observation) -> jax.Array:
        """Return the quantiles of each action, (batch, n_quantiles, n)."""
        return super().apply(params, observation).reshape(-1, self.n_quantiles, self.head.size)

    def values(self, params: Params, observation: Observation) -> jax.Array:
        """Return the mean of each action's quantiles, (batch, n)."""
        return self.apply(params, observation).mean(axis=1)


class ExportedTD3Actor(ExportedNumbers):
    """Actor of a TD3Policy."""

    def distribution(self, params: Params, observation: Observation) -> Deterministic:
        """Return the actions. SB3's algorithm adds noise, not its policy."""
        return Deterministic(self.apply(params, observation))


@dataclasses.dataclass(frozen=True)
class ExportedSACActor(ExportedNetwork):
    """Actor of a SACPolicy, a TQCPolicy or a CrossQPolicy.

    Attributes:
      exploration: settings of state-dependent exploration; None without it.
    """

    exploration: Exploration | None

    def apply(
        self,
        params: Params,
        observation: Observation,
        statistics: jax.Array | None = None,
        batches: BatchStatistics | None = None,
    ) -> SquashedGaussian | StateDependentGaussian:
        """Return the distribution over actions in [-1, 1].

        Args:
          params, observation: as in all networks.
          statistics: CrossQ's running statistics as a vector, if they are not among the params.
          batches: renormalizes in CrossQ's training; None: the running statistics are used.
        """
        params = self.named(params, statistics)
        mean, other = self.numbers(params, observation, **_options(batches))
        if self.exploration is None:
            return SquashedGaussian(mean, other)
        return StateDependentGaussian(mean, other, params["log_std"], **dataclasses.asdict(self.exploration))

    distribution = apply


@dataclasses.dataclass(frozen=True)
class ExportedCritic(ExportedNetwork):
    """Critics of a SACPolicy, a TD3Policy or a CrossQPolicy.

    Attributes:
      n_critics: how many there are.
      shares: whether they share the features extractor with the actor, whose loss alone trains it. The parameters of
        the extractor come first.
    """

    n_critics: int
    shares: bool

    def apply(
        self,
        params: Params,
        observation: Observation,
        action: jax.Array,
        statistics: jax.Array | None = None,
        batches: BatchStatistics | None = None,
    ) -> jax.Array:
        """Return the values, (n_critics, batch), of observations and of actions in [-1, 1].

        Args:
          params: of all of them, including a shared extractor; observation: as in all networks.
          action: a batch.
          statistics, batches: as in ExportedSACActor.
        """
        params = self.named(params, statistics)
        numbers = self.numbers(params, observation, action.reshape(action.shape[0], -1), **_options(batches))
        return jnp.stack([self._values(each) for each in numbers])

    def _values(self, numbers: jax.Array) -> jax.Array:
        return numbers[:, 0]


@dataclasses.dataclass(frozen=True)
class ExportedQuantileCritic(ExportedCritic):
    """Critics of a TQCPolicy. They compute `n_quantiles` quantiles each, so `apply` returns another axis."""

    n_quantiles: int

    def _values(self, numbers: jax.Array) -> jax.Array:
        return numbers.T


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
class ExportedActorCritic(OffPolicyPolicy):
    """Actor and critic without their weights. All parameters are vectors here, or tuples of their parts.

    If the critic shares its features extractor with the actor, its vector has only the rest, which its own optimizer
    trains.
    """

    actor: ExportedSACActor | ExportedTD3Actor
    critic: ExportedCritic
    head: ActionHead

    def critic_params(self, params: Vectors) -> Parameters:
        return self._critic_params(params["actor"], params["critic"])

    def _critic_params(self, actor: Parameters, critic: Parameters) -> Parameters:
        """Return all parameters of a critic, from the vectors of its actor and of itself."""
        if not self.critic.shares:
            return critic
        start, end = self._extractor(actor)
        return _joined(actor[start:end], critic)

    def _extractor(self, actor: Parameters) -> tuple[int, int]:
        """Return the start of the extractor in the actor's vector or parts, and the start of what follows it.

        PyTorch names its parameters one after the other.
        """
        parameters = self.actor.module.parameters
        starts: Sequence[int] = range(len(parameters) + 1)
        if not isinstance(actor, tuple):
            sizes = [math.prod(shape) for _, shape in parameters]
            ends = [*itertools.accumulate(sizes, initial=0)]
            starts = ends if actor.shape[0] == ends[-1] else [*aligned(sizes), actor.shape[0]]
        inside = [at for at, (name, _) in enumerate(parameters) if name.startswith(EXTRACTOR)]
        return (starts[inside[0]], starts[inside[-1] + 1]) if inside else (0, 0)


class ExportedSACPolicy(ExportedActorCritic):
    """SACPolicy, TQCPolicy or CrossQPolicy without its weights.

    SB3 gives the target of the critic a separate extractor, so the target's vector has everything.
    """

    def polyak(self, targets: Vectors, params: Vectors, tau: float | jax.Array) -> dict[str, jax.Array]:
        return {"critic_target": polyak_update(targets["critic_target"], self.critic_params(params), tau)}


class ExportedTD3Policy(ExportedActorCritic):
    """TD3Policy without its weights. The targets share an extractor if the actor and the critic share one."""

    def critic_target_params(self, targets: Vectors) -> Parameters:
        return self._critic_params(targets["actor_target"], targets["critic_target"])

    def polyak(self, targets: Vectors, params: Vectors, tau: float | jax.Array) -> dict[str, jax.Array]:
        critic = polyak_update(targets["critic_target"], params["critic"], tau)
        actor = targets["actor_target"]
        if self.critic.shares:
            # SB3 updates the critic's target and then the actor's. Shared parameters are in both, so they move twice.
            start, end = self._extractor(actor)
            shared = polyak_update(actor[start:end], params["actor"][start:end], tau)
            actor = _joined(actor[:start], shared, actor[end:])
        return {"actor_target": polyak_update(actor, params["actor"], tau), "critic_target": critic}


ExportedOffPolicy = ExportedDQNPolicy | ExportedQRDQNPolicy | ExportedSACPolicy | ExportedTD3Policy


def _joined(*pieces: Any) -> Parameters:
    """Return vectors, or tuples of their parts, end to end."""
    if isinstance(pieces[0], tuple):
        return tuple(itertools.chain.from_iterable(pieces))
    return jnp.concatenate(pieces)


def _options(batches: BatchStatistics | None) -> dict[str, object]:
    return {} if batches is None else {"instead": {"batch_renorm": batches.renormalize}}
