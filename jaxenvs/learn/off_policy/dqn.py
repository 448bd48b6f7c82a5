"""Deep Q-learning (Mnih et al. 2015, https://doi.org/10.1038/nature14236), as in Stable-Baselines3."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxenvs import arguments
from jaxenvs.environment import static, struct
from jaxenvs.learn.interfaces import Arrays, Real
from jaxenvs.learn.learner_state import LearnerState, Optimizers
from jaxenvs.learn.off_policy.policies import DQNPolicy, OffPolicyPolicy
from jaxenvs.learn.off_policy.settings import OffPolicySettings, on_vectors
from jaxenvs.learn.off_policy.store.replay import Transitions


@struct
class DQN(OffPolicySettings):
    """Deep Q-learning (Mnih et al. 2015, https://doi.org/10.1038/nature14236).

    Use it for Discrete actions. It explores epsilon-greedily. Its settings are the attributes of OffPolicySettings,
    with SB3's defaults, and:

    Attributes:
      target_update_interval: steps of all environments together between updates of the target network.
      exploration_fraction: the share of a training in which the share of random actions falls linearly.
      exploration_initial_eps, exploration_final_eps: the share of random actions at first, and after it has fallen.
      max_grad_norm: longer gradients are scaled down to this norm.
    """

    RANGES: ClassVar[dict[str, tuple[float, float]]] = OffPolicySettings.RANGES | {
        "target_update_interval": (1, math.inf),
        "exploration_fraction": (0, 1),
        "exploration_initial_eps": (0, 1),
        "exploration_final_eps": (0, 1),
        "max_grad_norm": (0, math.inf),
    }
    POLICY: ClassVar[type[OffPolicyPolicy]] = DQNPolicy
    NETWORKS: ClassVar[tuple[str, ...]] = ("q_net",)
    TARGETS: ClassVar[tuple[str, ...]] = ("q_net",)

    learning_rate: Real | dict[str, Real] = 1e-4
    batch_size: int = static(default=32)
    tau: Real = 1.0
    train_freq: int = static(default=4)
    target_update_interval: Real = 10_000
    exploration_fraction: Real = 0.1
    exploration_initial_eps: Real = 1.0
    exploration_final_eps: Real = 0.05
    max_grad_norm: Real | None = 10.0

    def check(self) -> None:
        """Raise if a setting is invalid."""
        super().check()
        if self.action_noise is not None:
            got = arguments.type_name(self.action_noise)
            raise ValueError(f"action_noise must be None, because DQN's actions are Discrete, got a {got}.")

    def exploration_rate(self, progress: Real) -> jax.Array:
        """Return the share of random actions.

        Args:
          progress: the share of the training that is done.
        """
        initial, final = self.exploration_initial_eps, self.exploration_final_eps
        fraction = jnp.maximum(self.exploration_fraction, 1e-30)  # if it is 0, the quotient is not used
        return jnp.where(progress > self.exploration_fraction, final, initial + progress * (final - initial) / fraction)

    def exploration_noise(self, policy: Any, params: Any, observation: Arrays, key: jax.Array, num: int) -> jax.Array:
        """Draw the uniform numbers that decide, in each of `num` steps, whether actions are random."""
        return jax.random.uniform(key, (num, 1))  # one for all environments, as in SB3

    def with_exploration_rate(self, rate: jax.Array) -> DQN:
        """Return the settings with a constant share of random actions."""
        return self.replace(exploration_initial_eps=rate, exploration_final_eps=rate)

    def values(self, policy: OffPolicyPolicy, params: Any, observation: Arrays) -> jax.Array:
        """Return the value of each action, (batch, n): the greedy action has the largest."""
        values: jax.Array = policy.q_net.apply(params["q_net"], observation)
        return values

    def explore(
        self, policy: OffPolicyPolicy, params: Any, observation: Arrays, noise: Any, random: jax.Array, progress: Real
    ) -> jax.Array:
        """Return random actions with probability `exploration_rate(progress)`, else greedy ones."""
        greedy = jnp.argmax(self.values(policy, params, observation), axis=1).astype(random.dtype)
        return jnp.where(noise < self.exploration_rate(progress), random, greedy)

    def on_step(self, policy: Any, state: LearnerState, before: Any, after: Any, num_envs: int) -> LearnerState:
        """Update the target network if `target_update_interval` has passed between the steps `before` and `after`."""
        policy, state, back = on_vectors(policy, state)
        interval = jnp.maximum(jnp.asarray(self.target_update_interval, jnp.int32) // num_envs, 1)
        times = after // interval - before // interval
        # Several updates with the same parameters equal one with a larger share.
        tau = 1 - (1 - self.tau) ** times.astype(jax.tree.leaves(state.params)[0].dtype)
        targets = jax.lax.cond(
            times > 0,
            lambda: policy.polyak(state.targets, state.params, tau),
            lambda: state.targets,
        )
        return back(dataclasses.replace(state, targets=targets))

    def _update(
        self,
        policy: OffPolicyPolicy,
        optimizers: Optimizers,
        state: LearnerState,
        batch: Transitions,
        noise: Any,
        gradient_step: jax.Array,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        (name,) = self.NETWORKS
        loss_of = self._loss_of(policy, state.targets, batch)
        (loss, error), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params[name])
        state = self._apply_gradients(optimizers, state, name, gradient, self.max_grad_norm)
        metrics = {"loss": loss} | batch.errors(error)
        return dataclasses.replace(state, num_updates=state.num_updates + 1), metrics

    def _loss_of(
        self, policy: OffPolicyPolicy, targets: Mapping[str, Any], batch: Transitions
    ) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
        """Return, as a function of the parameters, the loss and each value's distance from its target, (batch,)."""
        next_value = policy.q_net.apply(targets["q_net_target"], batch.next_observation).max(1)
        target = batch.reward + batch.discount * next_value

        def loss_of(params: jax.Array) -> tuple[jax.Array, jax.Array]:
            values = policy.q_net.apply(params, batch.observation)
            # Compare with every action rather than index, because the gradient of indexing would be a scatter.
            chosen = batch.action[:, None].astype(jnp.int32) == jnp.arange(values.shape[1], dtype=jnp.int32)
            error = jnp.sum(jnp.where(chosen, values, 0), axis=1) - target
            distance = jnp.abs(error)
            return jnp.mean(batch.weighted(jnp.where(distance < 1, 0.5 * error**2, distance - 0.5))), error

        return loss_of
