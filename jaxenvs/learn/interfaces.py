"""Protocols, for type checkers, of what `learn` accepts: observations and policies of any class that fits.

What an update changes is a LearnerState. Nothing here is computed, and nothing is checked at runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax
import numpy as np

from jaxenvs.learn.networks.distributions import Distribution

if TYPE_CHECKING:  # these modules import this one
    from jaxenvs.learn.networks.actor_critic import ActionHead, Masked
    from jaxenvs.learn.networks.lstm import Recalled

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
