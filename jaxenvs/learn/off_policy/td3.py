"""Twin delayed DDPG (Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477) and DDPG, as in Stable-Baselines3."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxenvs.environment import static, struct
from jaxenvs.learn.interfaces import Arrays, Real
from jaxenvs.learn.learner_state import LearnerState, Optimizers
from jaxenvs.learn.off_policy.policies import OffPolicyPolicy, TD3Policy
from jaxenvs.learn.off_policy.settings import OffPolicySettings
from jaxenvs.learn.off_policy.store.replay import Transitions


@struct
class TD3(OffPolicySettings):
    """Twin delayed deterministic policy gradient (Fujimoto, van Hoof & Meger 2018, https://arxiv.org/abs/1802.09477).

    Use it for actions of a Box, with an action noise for exploration, because its policy is deterministic. Its settings
    are the attributes of OffPolicySettings, with SB3's defaults, and:

    Attributes:
      policy_delay: gradient steps of the critics for one of the actor and of the targets.
      target_policy_noise: the standard deviation of the noise on the actions from which targets are computed.
      target_noise_clip: the bound of that noise.
    """

    RANGES: ClassVar[dict[str, tuple[float, float]]] = OffPolicySettings.RANGES | {
        "target_policy_noise": (0, math.inf),
        "target_noise_clip": (0, math.inf),
    }
    COUNTS: ClassVar[tuple[str, ...]] = (*OffPolicySettings.COUNTS, "policy_delay")
    POLICY: ClassVar[type[OffPolicyPolicy]] = TD3Policy
    NETWORKS: ClassVar[tuple[str, ...]] = ("actor", "critic")
    TARGETS: ClassVar[tuple[str, ...]] = ("actor", "critic")
    DELAYED: ClassVar[tuple[str, ...]] = ("actor_loss",)

    learning_rate: Real | dict[str, Real] = 1e-3
    policy_delay: int = static(default=2)
    target_policy_noise: Real = 0.2
    target_noise_clip: Real = 0.5

    def noise(self, policy: Any, params: Mapping[str, Any], batch: Transitions, key: jax.Array, num: int) -> jax.Array:
        """Draw the noise on the target actions of `num` updates: standard normal, (num, batch, n)."""
        return jax.random.normal(key, (num, *batch.action.shape), jax.tree.leaves(params)[0].dtype)

    def explore(
        self, policy: OffPolicyPolicy, params: Any, observation: Arrays, noise: Any, random: jax.Array, progress: Real
    ) -> jax.Array:
        """Return the actions of the deterministic policy."""
        action: jax.Array = policy.actor.apply(params["actor"], observation)
        return action

    def _update(
        self,
        policy: OffPolicyPolicy,
        optimizers: Optimizers,
        state: LearnerState,
        batch: Transitions,
        noise: Any,
        gradient_step: jax.Array,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        noise = jnp.clip(noise * self.target_policy_noise, -self.target_noise_clip, self.target_noise_clip)
        next_action = policy.actor.apply(state.targets["actor_target"], batch.next_observation)
        next_action = jnp.clip(next_action + noise, -1, 1)
        target_params = policy.critic_target_params(state.targets)
        next_value = policy.critic.apply(target_params, batch.next_observation, next_action).min(0)
        target = batch.reward + batch.discount * next_value

        def critic_loss_of(params: jax.Array) -> tuple[jax.Array, jax.Array]:
            full = policy.critic_params(state.params | {"critic": params})
            error = policy.critic.apply(full, batch.observation, batch.action) - target
            return jnp.sum(jnp.mean(batch.weighted(error**2), axis=1)), error

        (critic_loss, error), gradient = jax.value_and_grad(critic_loss_of, has_aux=True)(state.params["critic"])
        state = self._apply_gradients(optimizers, state, "critic", gradient)
        state = dataclasses.replace(state, num_updates=state.num_updates + 1)

        def improve(state: LearnerState) -> tuple[LearnerState, jax.Array]:
            full = policy.critic_params(state.params)

            def actor_loss_of(params: jax.Array) -> jax.Array:
                action = policy.actor.apply(params, batch.observation)
                return -jnp.mean(policy.critic.apply(full, batch.observation, action)[0])

            actor_loss, gradient = jax.value_and_grad(actor_loss_of)(state.params["actor"])
            state = self._apply_gradients(optimizers, state, "actor", gradient)
            targets = policy.polyak(state.targets, state.params, self.tau)
            return dataclasses.replace(state, targets=targets), actor_loss

        if self.policy_delay == 1:
            is_due: bool | jax.Array = True
            state, actor_loss = improve(state)
        else:
            is_due = state.num_updates % self.policy_delay == 0
            state, actor_loss = jax.lax.cond(is_due, improve, lambda state: (state, jnp.zeros_like(critic_loss)), state)
        actor_updates = jnp.asarray(is_due, critic_loss.dtype)
        metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss, "actor_updates": actor_updates}
        return state, metrics | batch.errors(error)


@struct
class DDPG(TD3):
    """Deep deterministic policy gradient (Lillicrap et al. 2015, https://arxiv.org/abs/1509.02971).

    It is TD3 without delay and target noise. SB3's DDPG has one critic: use `TD3Policy.of(env, n_critics=1)`.
    """

    policy_delay: int = static(default=1)
    target_policy_noise: Real = 0.1
    target_noise_clip: Real = 0.0
