"""Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905), as in Stable-Baselines3."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from jaxenvs import arguments
from jaxenvs.environment import static, struct
from jaxenvs.jax_names import is_traced
from jaxenvs.learn.interfaces import Arrays, Real
from jaxenvs.learn.learner_state import LearnerState, Optimizers
from jaxenvs.learn.networks.distributions import StateDependentGaussian
from jaxenvs.learn.off_policy.policies import OffPolicyPolicy, SACPolicy
from jaxenvs.learn.off_policy.settings import ADAM, OffPolicySettings
from jaxenvs.learn.off_policy.store.replay import Transitions


@struct
class SAC(OffPolicySettings):
    """Soft actor-critic (Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905).

    Use it for actions of a Box where samples are scarce. Its settings are the attributes of OffPolicySettings, with
    SB3's defaults, and:

    Attributes:
      ent_coef: the weight of the entropy; or, if it is learned, its initial value.
      auto_ent_coef: whether it is learned. SB3's "auto" is this with `ent_coef` 1, its "auto_0.1" with 0.1.
      target_entropy: the entropy that a learned coefficient aims at. None: minus the size of an action.
      target_update_interval: gradient steps between updates of the targets, counted from 0 after each collection.
      sde_sample_freq: how many steps use the same noise if exploration is state-dependent; -1: all between updates.
      use_sde_at_warmup: whether state-dependent exploration begins at once, instead of random actions.
    """

    RANGES: ClassVar[dict[str, tuple[float, float]]] = OffPolicySettings.RANGES | {
        "ent_coef": (0, math.inf),
        "target_entropy": (-math.inf, math.inf),
        "target_update_interval": (1, math.inf),
    }
    POLICY: ClassVar[type[OffPolicyPolicy]] = SACPolicy
    NETWORKS: ClassVar[tuple[str, ...]] = ("actor", "critic")
    TARGETS: ClassVar[tuple[str, ...]] = ("critic",)

    ent_coef: Real = 1.0
    auto_ent_coef: bool = static(default=True)
    target_entropy: Real | None = None
    target_update_interval: Real = 1
    sde_sample_freq: int = static(default=-1)
    use_sde_at_warmup: bool = static(default=False)

    @property
    def random_warm_up(self) -> bool:
        """True if actions are random until learning starts."""
        return not self.use_sde_at_warmup

    def check(self) -> None:
        """Raise if a setting is invalid."""
        super().check()
        arguments.integer("sde_sample_freq", self.sde_sample_freq, -1)
        if self.auto_ent_coef and not is_traced(self.ent_coef) and self.ent_coef == 0:
            raise ValueError(
                "ent_coef must be above 0 to be learned, got 0: for a fixed coefficient pass auto_ent_coef=False."
            )

    def optimizers(self, optimizer: optax.GradientTransformation | None = None) -> Optimizers:
        """Return an optimizer for each network. The entropy coefficient always uses Adam, as in SB3."""
        return dict(super().optimizers(optimizer)) | ({"log_ent_coef": ADAM} if self.auto_ent_coef else {})

    def create(self, params: Mapping[str, Any], optimizers: Optimizers) -> LearnerState:
        """Return the state before the first update, which includes the entropy coefficient if it is learned."""
        if self.auto_ent_coef:
            dtype = jax.tree.leaves(params)[0].dtype
            params = dict(params) | {"log_ent_coef": jnp.log(jnp.full(1, self.ent_coef, dtype))}
        return super().create(params, optimizers)

    def noise(self, policy: Any, params: Mapping[str, Any], batch: Transitions, key: jax.Array, num: int) -> Any:
        """Draw the noise of `num` updates: a pair, for the actions after `observation` and after `next_observation`."""
        distribution = jax.eval_shape(functools.partial(self._distribution, policy), params, batch.observation)
        if isinstance(distribution, StateDependentGaussian):  # one matrix for both, and for the whole batch
            matrices = distribution.matrix_noise(key, num)
            return matrices, matrices
        noise: jax.Array = distribution.noise(key, 2 * num)
        return noise[:num], noise[num:]

    def exploration_noise(self, policy: Any, params: Any, observation: Arrays, key: jax.Array, num: int) -> jax.Array:
        """Draw the noise of the actions in `num` steps of all environments, with the leading axis `num`."""
        distribution = jax.eval_shape(functools.partial(self._distribution, policy), params, observation)
        repeat = 1
        if isinstance(distribution, StateDependentGaussian):
            repeat = num if self.sde_sample_freq <= 0 else self.sde_sample_freq
        noise: jax.Array = distribution.noise(key, -(-num // repeat))
        return noise if repeat == 1 else noise[jnp.arange(num) // repeat]

    def explore(
        self, policy: OffPolicyPolicy, params: Any, observation: Arrays, noise: Any, random: jax.Array, progress: Real
    ) -> jax.Array:
        """Sample actions of the policy, from the noise of one step."""
        action: jax.Array = self._distribution(policy, params, observation).sample(noise)
        return action

    def _distribution(self, policy: OffPolicyPolicy, params: Any, observation: Arrays) -> Any:
        """Return the distribution over actions, given the result of `acting_params`."""
        return policy.actor.apply(params["actor"], observation)

    def _update_entropy(
        self, optimizers: Optimizers, state: LearnerState, log_prob: jax.Array, size: int
    ) -> tuple[jax.Array, LearnerState]:
        """Return the loss of the entropy coefficient, and the state after its step, given the size of an action."""
        log_ent_coef = state.params["log_ent_coef"]
        excess = jnp.mean(log_prob + (-size if self.target_entropy is None else self.target_entropy))
        loss = -log_ent_coef[0] * excess
        return loss, self._apply_gradients(optimizers, state, "log_ent_coef", jnp.full_like(log_ent_coef, -excess))

    # TQC overrides these three; `values` is what the critics return: (n_critics, batch).

    def _value(self, values: jax.Array) -> jax.Array:
        """Return the values that the actor maximizes, (batch,)."""
        return values.min(0)

    def _next_value(self, values: jax.Array) -> jax.Array:
        """Return the values from which targets are computed, (..., batch)."""
        return values.min(0)

    def _critic_loss(self, values: jax.Array, target: jax.Array, batch: Transitions) -> tuple[jax.Array, jax.Array]:
        """Return the loss, and each value's distance from its target, (..., batch)."""
        error = values - target
        return 0.5 * jnp.sum(jnp.mean(batch.weighted(error**2), axis=1)), error

    def _update(
        self,
        policy: OffPolicyPolicy,
        optimizers: Optimizers,
        state: LearnerState,
        batch: Transitions,
        noise: Any,
        gradient_step: jax.Array,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        noise, next_noise = noise
        actor_params = state.params["actor"]

        def act(params: jax.Array) -> Any:
            return policy.actor.apply(params, batch.observation).sample_and_log_prob(noise)

        # The actor's loss comes last, after the critics have changed, but one evaluation of the actor serves all three
        # losses.
        (action, log_prob), actor_gradient_of = jax.vjp(act, actor_params)

        metrics: dict[str, jax.Array] = {}
        ent_coef = jnp.asarray(self.ent_coef, log_prob.dtype)
        if self.auto_ent_coef:
            ent_coef = jnp.exp(state.params["log_ent_coef"][0])
            metrics["ent_coef_loss"], state = self._update_entropy(optimizers, state, log_prob, action.shape[1])

        distribution = policy.actor.apply(actor_params, batch.next_observation)
        next_action, next_log_prob = distribution.sample_and_log_prob(next_noise)
        target_params = policy.critic_target_params(state.targets)
        next_value = self._next_value(policy.critic.apply(target_params, batch.next_observation, next_action))
        target = batch.reward + batch.discount * (next_value - ent_coef * next_log_prob)

        def critic_loss_of(params: jax.Array) -> tuple[jax.Array, jax.Array]:
            full = policy.critic_params(state.params | {"critic": params})
            return self._critic_loss(policy.critic.apply(full, batch.observation, batch.action), target, batch)

        critic_gradient_of = jax.value_and_grad(critic_loss_of, has_aux=True)
        (metrics["critic_loss"], error), gradient = critic_gradient_of(state.params["critic"])
        metrics |= batch.errors(error)
        state = self._apply_gradients(optimizers, state, "critic", gradient)

        full = policy.critic_params(state.params)

        def actor_loss_of(action: jax.Array, log_prob: jax.Array) -> jax.Array:
            return jnp.mean(ent_coef * log_prob - self._value(policy.critic.apply(full, batch.observation, action)))

        metrics["actor_loss"], gradients = jax.value_and_grad(actor_loss_of, argnums=(0, 1))(action, log_prob)
        state = self._apply_gradients(optimizers, state, "actor", actor_gradient_of(gradients)[0])

        # A share of 0 rather than a branch, which would copy the targets.
        tau = jnp.where(gradient_step % self.target_update_interval == 0, self.tau, 0)
        targets = policy.polyak(state.targets, state.params, tau)
        metrics["ent_coef"] = ent_coef
        return dataclasses.replace(state, targets=targets, num_updates=state.num_updates + 1), metrics
