"""Batches and states that environments, policies and algorithms exchange, and a protocol of networks for type checkers.

What an update changes is a LearnerState. Nothing here is checked at runtime.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np

from jaxenvs.environment import struct
from jaxenvs.learn.networks.distributions import Distribution
from jaxenvs.vector import VectorTimeStep

Array: TypeAlias = jax.Array | np.ndarray
# A number, which may be traced.
Real: TypeAlias = float | Array

# A batch of observations of environments: an array, or a mapping or tuple of them for a Dict or Tuple space.
Arrays: TypeAlias = "Array | Mapping[str, Arrays] | tuple[Arrays, ...]"
# Recurrent states: hidden states and cell states, each (batch, layers, size).
Memory = tuple[jax.Array, jax.Array]


@struct
class Masked:
    """Batch of observations together with masks of the legal actions.

    Attributes:
      observation: a batch.
      action_mask: (batch, n), 0 for illegal actions.
    """

    observation: Arrays
    action_mask: Array


@struct
class Recalled:
    """Batch of observations together with recurrent states.

    Attributes:
      observation: a batch, which may be Masked.
      memory: the recurrent states after the previous steps, of the actor and of the critic, by "pi" and "vf".
      episode_start: (batch,), not 0 where an episode begins, which resets the recurrent state.
      begins: None: each row of the batch is one step. Or bool (batch,): the rows are concatenated sequences, True where
        one begins, with the recurrent state of its row; the first row must begin one.
    """

    observation: Arrays | Masked
    memory: dict[str, Memory]
    episode_start: Array
    begins: Array | None = None


# A batch of what a policy sees: observations alone, or with a mask of legal actions, or with recurrent states, or both.
Observation: TypeAlias = "Arrays | Masked | Recalled"


def unmasked(seen: Any) -> tuple[Any, Array | None]:
    """Return what a policy sees without the mask of legal actions, and the mask; None if there is none."""
    if isinstance(seen, Masked):
        return seen.observation, seen.action_mask
    if isinstance(seen, Recalled):
        observation, mask = unmasked(seen.observation)
        return dataclasses.replace(seen, observation=observation), mask
    return seen, None


@struct
class CollectorState:
    """State from which collecting continues.

    Attributes:
      env_state: the state of the environments, as the `step` of `collect` takes it.
      observation: the observation on which the policy acts next.
    """

    env_state: Any
    observation: Observation


# Takes one step of all environments: from their state and a batch of actions to the state, the TimeStep as the policy
# sees it (normalized, for example), and any further output that the caller wants of every step.
Step = Callable[[Any, jax.Array], tuple[Any, VectorTimeStep, Any]]


class OnPolicyNetwork(Protocol):
    """Network that on-policy algorithms train: one network, for actions and for values, without its weights."""

    def apply(self, params: Any, observation: Any, /) -> tuple[Distribution, jax.Array]:
        """Return the distribution over actions and the values, (batch,), for a batch of observations.

        Args:
          params: a pytree of arrays of one dtype.
          observation: an Observation, of the kind that the network is for.
        """

    def to_env(self, action: jax.Array, /) -> jax.Array:
        """Convert a batch of actions, as they are learned from, to actions of the environments."""
