"""What `learn` takes of others, for type checkers: observations, policies and stores, of any classes that fit.

What an update changes is a LearnerState. Nothing here is computed, and nothing is asked for at runtime.
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

# A batch of what environments show: an array, or those of the parts of a Dict or Tuple space.
Arrays: TypeAlias = "Array | Mapping[str, Arrays] | tuple[Arrays, ...]"
# A batch of what a policy sees: that alone; with which actions are legal; or with what a recurrent network remembers.
Observation: TypeAlias = "Arrays | Masked | Recalled"


class Policy(Protocol):
    """Networks without their weights, which are an argument. Hashable: programs are compiled for each."""

    def to_env(self, action: jax.Array, /) -> jax.Array:
        """A batch of actions, as they are learned from, as actions of the environments."""


class OnPolicyNetwork(Policy, Protocol):
    """What on-policy algorithms train: one network, for actions and for values."""

    def apply(self, params: Any, observation: Any, /) -> tuple[Distribution, jax.Array]:
        """The distribution over actions and the values, (batch,), for a batch of observations.

        Args:
          params: a pytree of arrays of one dtype.
          observation: an Observation, of the kind that the network is for.
        """


class OffPolicyNetworks(Policy, Protocol):
    """What off-policy algorithms train: several networks, by name, as OffPolicyPolicy describes them.

    The networks are further attributes. Which there are, the algorithm knows: `q_net`, or `actor` and `critic`.
    """

    @property
    def head(self) -> ActionHead:
        """Of the actions."""

    def critic_params(self, params: Mapping[str, Any], /) -> Any:
        """What `critic.apply` takes, of the parameters of all networks."""

    def critic_target_params(self, targets: Mapping[str, Any], /) -> Any:
        """What `critic.apply` takes, of the targets."""

    def polyak(self, targets: Mapping[str, Any], params: Mapping[str, Any], tau: Any, /) -> dict[str, Any]:
        """The targets moved by a share `tau` to the parameters; all of them vectors."""


class Store(Protocol):
    """What off-policy trainings keep steps in and learn from: a pytree, changed by making another. Replay is one."""

    @property
    def num_envs(self) -> int:
        """How many environments it holds steps of."""

    @property
    def action(self) -> jax.Array:
        """The actions that are stored, (rows, num_envs, ...)."""

    @property
    def position(self) -> jax.Array:
        """The row that is written next, int32."""

    @property
    def is_ready(self) -> jax.Array:
        """Whether there is anything to draw, once something was added."""

    @property
    def episodes(self) -> Episodes | None:
        """Where whole episodes are, of which alone hindsight draws."""

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
        """With one step of all environments more, see Replay.add."""

    def draw(self, bits: jax.Array, /) -> tuple[jax.Array, jax.Array]:
        """Rows and lanes of stored steps, by random bits."""

    def transitions(
        self,
        rows: jax.Array,
        lanes: jax.Array,
        gamma: Any,
        n_steps: int = 1,
        reward_of: Callable[[jax.Array], jax.Array] = ...,
    ) -> Transitions:
        """What began in these slots, see Replay.transitions."""

    def part(self, name: str, /) -> Self:
        """The same steps, of which one entry of the observations is all that is observed."""

    def of_all_devices(self) -> Self:
        """With a leading axis of devices, of which there is one here."""
