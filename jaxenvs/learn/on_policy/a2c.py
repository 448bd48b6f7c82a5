"""Advantage actor-critic (Mnih et al. 2016, https://arxiv.org/abs/1602.01783), synchronous, as in Stable-Baselines3."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from jaxenvs.environment import static, struct
from jaxenvs.learn import devices
from jaxenvs.learn.interfaces import OnPolicyNetwork, Real
from jaxenvs.learn.learner_state import POLICY, LearnerState, Optimizers
from jaxenvs.learn.on_policy.collecting import Rollout, explained_variance
from jaxenvs.learn.on_policy.settings import OnPolicySettings
from jaxenvs.learn.optimization import ravel
from jaxenvs.vector import join_axes

# Set as in Stable-Baselines3: PyTorch's form, which adds epsilon outside of the root.
RMSPROP = optax.scale_by_rms(decay=0.99, eps=1e-5, eps_in_sqrt=False)


@struct
class A2C(OnPolicySettings):
    """Advantage actor-critic (Mnih et al. 2016, https://arxiv.org/abs/1602.01783): one gradient step for each rollout.

    Use it for short rollouts with cheap updates; PPO learns more from each sample. Its settings are the attributes of
    OnPolicySettings, with SB3's defaults.
    """

    OPTIMIZER: ClassVar[optax.GradientTransformation] = RMSPROP

    n_steps: int = static(default=5)
    learning_rate: Real | dict[str, Real] = 7e-4
    gae_lambda: Real = 1.0
    normalize_advantage: bool = static(default=False)

    def update(
        self,
        network: OnPolicyNetwork,
        optimizers: Optimizers,
        state: LearnerState,
        rollout: Rollout,
        key: jax.Array,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Take one gradient step on the whole rollout. Draws nothing."""
        data = join_axes(rollout)
        params, unravel = ravel(state.params[POLICY])
        gradient, metrics = jax.grad(self._loss, argnums=1, has_aux=True)(network, state.params[POLICY], data)
        on_vector = dataclasses.replace(state, params={POLICY: params})
        after = self._apply_gradients(optimizers, on_vector, POLICY, ravel(gradient)[0], self.max_grad_norm)
        metrics = devices.pmean(metrics, self.axis_name)
        metrics["explained_variance"] = explained_variance(rollout, self.axis_name)
        params = {POLICY: unravel(after.params[POLICY])}
        return dataclasses.replace(after, params=params, num_updates=state.num_updates + 1), metrics

    def _loss(self, network: OnPolicyNetwork, params: Any, batch: Rollout) -> tuple[jax.Array, dict[str, jax.Array]]:
        distribution, value = network.apply(params, batch.observation)
        log_prob = distribution.log_prob(batch.action)
        entropy = distribution.entropy()
        advantage = batch.advantage
        if self.normalize_advantage:
            centred = advantage - devices.mean(advantage, None, self.axis_name)
            advantage = centred / (devices.std(advantage, None, self.axis_name, ddof=1) + 1e-8)
        policy_loss = -jnp.mean(advantage * log_prob)
        value_loss = jnp.mean((batch.returns - value) ** 2)
        entropy_loss = -jnp.mean(-log_prob if entropy is None else entropy)
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy_loss": entropy_loss}
