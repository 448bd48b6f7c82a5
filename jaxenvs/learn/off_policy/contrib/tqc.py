"""Truncated quantile critics (Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269), as in sb3-contrib."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from jaxenvs import arguments
from jaxenvs.environment import Environment, static, struct
from jaxenvs.learn.interfaces import Arrays
from jaxenvs.learn.networks.actor_critic import Activation
from jaxenvs.learn.off_policy.contrib.quantiles import quantile_huber_loss, without_largest
from jaxenvs.learn.off_policy.policies import ActorCriticPolicy, ContinuousCritic, OffPolicyPolicy, Params, SACPolicy
from jaxenvs.learn.off_policy.sac import SAC
from jaxenvs.learn.off_policy.store.replay import Transitions


@dataclasses.dataclass(frozen=True)
class QuantileCritic(ContinuousCritic):
    """Critics for quantiles of returns, given observations and actions in [-1, 1]: (n_critics, n_quantiles, batch)."""

    def apply(self, params: Params, observation: Arrays, action: jax.Array) -> jax.Array:
        return jnp.stack([numbers.T for numbers in self.outputs(params, observation, action)])


class TQCPolicy(ActorCriticPolicy):
    """SAC's actor, and critics that return quantiles."""

    @classmethod
    def of(
        cls,
        env: Environment[Any],
        net_arch: tuple[int, ...] | Mapping[str, tuple[int, ...]] = (256, 256),
        activation: Activation = jax.nn.relu,
        n_critics: int = 2,
        n_quantiles: int = 25,
    ) -> Self:
        """Return the networks for the spaces of an environment, with the arguments of SACPolicy.of.

        Args:
          n_quantiles: of each critic.
        """
        like = SACPolicy.of(env, net_arch, activation, n_critics)
        networks = [dataclasses.replace(each, sizes=(*each.sizes[:-1], n_quantiles)) for each in like.critic.q_networks]
        return cls(like.actor, QuantileCritic(like.critic.extractor, tuple(networks)), like.head)


@struct
class TQC(SAC):
    """Truncated quantile critics (Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269).

    Use it like SAC, where overestimated values hurt: dropping the largest quantiles reduces overestimation. Its
    settings are SAC's, and:

    Attributes:
      top_quantiles_to_drop_per_net: how many of the largest quantiles targets ignore: this number times the number of
        critics, of the quantiles of all critics together.
    """

    POLICY: ClassVar[type[OffPolicyPolicy]] = TQCPolicy

    top_quantiles_to_drop_per_net: int = static(default=2)

    def check(self) -> None:
        """Raise if a setting is invalid."""
        super().check()
        arguments.non_negative_int("top_quantiles_to_drop_per_net", self.top_quantiles_to_drop_per_net)

    # SAC's hooks. Here critics return (n_critics, n_quantiles, batch).

    def _value(self, values: jax.Array) -> jax.Array:
        return values.mean((0, 1))

    def _next_value(self, values: jax.Array) -> jax.Array:
        n_critics, n_quantiles, batch = values.shape
        if self.top_quantiles_to_drop_per_net >= n_quantiles:
            raise ValueError(
                f"top_quantiles_to_drop_per_net must be less than the {n_quantiles} quantiles of each critic, got "
                f"{self.top_quantiles_to_drop_per_net}."
            )
        return without_largest(values.reshape(-1, batch), n_critics * self.top_quantiles_to_drop_per_net)

    def _critic_loss(self, values: jax.Array, target: jax.Array, batch: Transitions) -> tuple[jax.Array, jax.Array]:
        losses = quantile_huber_loss(values, target)  # (n_critics, batch)
        return jnp.mean(batch.weighted(losses)), values.mean(1) - target.mean(0)
