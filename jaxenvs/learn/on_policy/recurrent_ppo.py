"""PPO with a memory, as sb3-contrib's RecurrentPPO: minibatches are sequences, and begin with what was remembered."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.environment import static, struct
from jaxenvs.learn.interfaces import OnPolicyNetwork
from jaxenvs.learn.learner_state import LearnerState, Optimizers
from jaxenvs.learn.networks.distributions import Distribution
from jaxenvs.learn.on_policy.collecting import Rollout
from jaxenvs.learn.on_policy.ppo import PPO


@struct
class RecurrentPPO(PPO):
    """PPO on observations that are Recalled, of a network with a memory, as learn.RecurrentActorCritic.

    All steps of one environment stand in a row, then those of the next; an epoch begins somewhere in there and goes
    round, and is cut into minibatches. Within each, gradients go back through time to where an episode, an environment
    or the minibatch begins.
    """

    n_steps: int = static(default=128)
    batch_size: int = static(default=128)

    def check_network(self, network: object) -> None:
        """Refuse what the algorithm cannot train.

        Raises:
          TypeError: it has no memory.
        """
        super().check_network(network)
        if not callable(getattr(network, "recall", None)):
            raise TypeError(
                f"network must be recurrent, such as learn.RecurrentActorCritic, got a {type(network).__name__}."
            )

    def update(
        self,
        network: OnPolicyNetwork,
        optimizers: Optimizers,
        state: LearnerState,
        rollout: Rollout,
        key: jax.Array,
        permutations: jax.Array | None = None,
    ) -> tuple[LearnerState, dict[str, Any]]:
        """As PPO's.

        Args:
          permutations: as `in_rows` gives them.
        """
        seen: Any = rollout.observation  # Recalled
        is_first = jnp.arange(seen.episode_start.shape[0])[:, None] == 0
        seen = dataclasses.replace(seen, begins=(seen.episode_start != 0) | is_first)
        rollout = dataclasses.replace(rollout, observation=seen)
        return super().update(network, optimizers, state, rollout, key, permutations)

    def _orders(self, key: jax.Array, n_steps: int, num_envs: int) -> jax.Array:
        begin = jax.random.randint(key, (self.n_epochs,), 0, n_steps * num_envs, jnp.int32)
        return in_rows(begin, n_steps, num_envs)

    def _judge(self, network: OnPolicyNetwork, params: Any, batch: Rollout) -> tuple[Distribution, jax.Array]:
        seen: Any = batch.observation
        return network.apply(params, dataclasses.replace(seen, begins=seen.begins.at[0].set(True)))


def in_rows(begin: jax.Array, n_steps: int, num_envs: int) -> jax.Array:
    """The order of an epoch that begins at one of the steps that stand in a row, for each of `begin`.

    Returns:
      int32 (epochs, n_steps * num_envs), where step t of environment i is t * num_envs + i.
    """
    size = n_steps * num_envs
    in_row = (begin[:, None] + jnp.arange(size, dtype=jnp.int32)) % size
    return in_row % n_steps * num_envs + in_row // n_steps
