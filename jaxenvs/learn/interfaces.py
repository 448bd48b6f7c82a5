"""Protocols, for type checkers, of what `learn` accepts: observations, policies and stores of any class that fits.

What an update changes is a LearnerState. Nothing here is computed, and nothing is checked at runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import jax
import numpy as np

from jaxenvs.learn.networks.distributions import Distribution

if TYPE_CHECKING:  # these modules import this one
    from jaxenvs.learn.networks.actor_critic import ActionHead, Masked
    from jaxenvs.learn.networks.lstm import Recalled
    from jaxenvs.learn.off_policy.store.hindsight import Episodes
    from jaxenvs.learn.off_policy.store.replay import Transitions

Array: TypeAlias = jax.Array | np.ndarray

# A batch of observations of environments: an array, or a mapping or tuple of them for a Dict or Tuple space.
Arrays: TypeAlias = "Array | Mapping[str, Arrays] | tuple[Arrays, ...]"
# A batch of what a policy sees: observations alone, or with a mask of legal actions, or with recurrent states.
Observation: TypeAlias = "Arrays | Masked | Recalled"


class Policy(Protocol):
    """Networks without their weights, which are an argument. Hashable: functions are compiled for each policy."""

    def to_env(self, action: jax.Array, /) -> jax.Array:
        """Convert a batch of actions, as they are learned from, to actions of the environments."""


class OnPolicyNetwork(Policy, Protocol):
    """Network that on-policy algorithms train: one network, for actions and for values."""

    def apply(self, params: Any, observation: Any, /) -> tuple[Distribution, jax.Array]:
        """Return the distribution over actions and the values, (batch,), for a batch of observations.

        Args:
          params: a pytree of arrays of one dtype.
          observation: an Observation, of the kind that the network is for.
        """


class OffPolicyNetworks(Policy, Protocol):
    """Networks that off-policy algorithms train, by name, as OffPolicyPolicy describes them.

    The networks are further attributes, which each algorithm knows: `q_net`, or `actor` and `critic`.
    """

    @property
    def head(self) -> ActionHead:
        """ActionHead that converts actions."""

    def critic_params(self, params: Mapping[str, Any], /) -> Any:
        """Return the argument of `critic.apply`, from the parameters of all networks."""

    def critic_target_params(self, targets: Mapping[str, Any], /) -> Any:
        """Return the argument of `critic.apply`, from the parameters of the target networks."""

    def polyak(self, targets: Mapping[str, Any], params: Mapping[str, Any], tau: Any, /) -> dict[str, Any]:
        """Return the targets after a Polyak update with share `tau` of the parameters; all of them vectors."""


class Store(Protocol):
    """Replay storage of off-policy trainings: an immutable pytree; methods return a changed copy. Replay is one."""

    @property
    def num_envs(self) -> int:
        """Number of environments whose steps are stored."""

    @property
    def action(self) -> jax.Array:
        """Stored actions, (rows, num_envs, ...)."""

    @property
    def position(self) -> jax.Array:
        """Row that is written next, int32."""

    @property
    def is_ready(self) -> jax.Array:
        """True if there is anything to sample, once steps were added."""

    @property
    def episodes(self) -> Episodes | None:
        """Index of the whole episodes in the store, the only ones that hindsight samples from; or None."""

    def add(
        self,
        observation: Arrays,
        action: jax.Array,
        reward: jax.Array,
        terminated: jax.Array,
        truncated: jax.Array,
        next_observation: Arrays,
        final_observation: Arrays,
        /,
    ) -> Self:
        """Return the store with one more step of all environments, as Replay.add does."""

    def draw(self, bits: jax.Array, /) -> tuple[jax.Array, jax.Array]:
        """Sample stored steps by random bits: their rows, and their environments' indices."""

    def transitions(
        self,
        rows: jax.Array,
        lanes: jax.Array,
        gamma: Any,
        n_steps: int = 1,
        reward_of: Callable[[jax.Array], jax.Array] = ...,
    ) -> Transitions:
        """Return the transitions that begin at the given rows and environments, as Replay.transitions does."""

    def part(self, name: str, /) -> Self:
        """Return the same steps with one entry of the observations as the whole observation."""

    def of_all_devices(self) -> Self:
        """Return the store with a leading axis of devices, of size 1 here."""
