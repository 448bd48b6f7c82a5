"""Recurrent PPO, as in sb3-contrib: minibatches are sequences that start from stored recurrent states."""

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
    """PPO with a recurrent network, as learn.RecurrentActorCritic, whose observations are Recalled.

    Use it where an observation does not show the whole state. All steps of one environment are lined up, followed by
    the steps of the next environment; an epoch begins at a random position, wraps around, and is cut into minibatches.
    Within each minibatch, gradients flow back through time to where an episode, an environment or the minibatch begins.
    """

    n_steps: int = static(default=128)
    batch_size: int = static(default=128)

    def check_network(self, network: object) -> None:
        """Raise unless the network has recurrent states.

        Raises:
          TypeError: it has none.
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
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Run all epochs of gradient steps on a rollout, as PPO does.

        Args:
          permutations: as `in_rows` returns them.
        """
        seen: Any = rollout.observation  # Recalled
        is_first = jnp.arange(seen.episode_start.shape[0])[:, None] == 0
        seen = dataclasses.replace(seen, begins=(seen.episode_start != 0) | is_first)
        rollout = dataclasses.replace(rollout, observation=seen)
        return super().update(network, optimizers, state, rollout, key, permutations)

    def _orders(self, key: jax.Array, n_steps: int, num_envs: int) -> jax.Array:
        begin = jax.random.randint(key, (self.n_epochs,), 0, n_steps * num_envs, jnp.int32)
        return in_rows(begin, n_steps, num_envs)

    def _evaluate(self, network: OnPolicyNetwork, params: Any, batch: Rollout) -> tuple[Distribution, jax.Array]:
        seen: Any = batch.observation
        return network.apply(params, dataclasses.replace(seen, begins=seen.begins.at[0].set(True)))


def in_rows(begin: jax.Array, n_steps: int, num_envs: int) -> jax.Array:
    """Return the order of an epoch over the lined-up steps, for each starting position in `begin`.

    Returns:
      int32 (epochs, n_steps * num_envs), where step t of environment i is t * num_envs + i.
    """
    size = n_steps * num_envs
    in_row = (begin[:, None] + jnp.arange(size, dtype=jnp.int32)) % size
    return in_row % n_steps * num_envs + in_row // n_steps
