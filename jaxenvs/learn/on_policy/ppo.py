"""Proximal policy optimization (Schulman et al. 2017, https://arxiv.org/abs/1707.06347), as in Stable-Baselines3."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxenvs.environment import struct
from jaxenvs.learn.interfaces import OnPolicyNetwork, Real
from jaxenvs.learn.networks.distributions import Distribution
from jaxenvs.learn.on_policy.collecting import Rollout
from jaxenvs.learn.on_policy.minibatches import MinibatchSettings


@struct
class PPO(MinibatchSettings):
    """Proximal policy optimization (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

    The usual first choice for fast environments, with discrete or continuous actions. Its settings are the attributes
    of OnPolicySettings and MinibatchSettings, with SB3's defaults, and:

    Attributes:
      clip_range: of the probability ratio; a float, or an array with one for each iteration.
      clip_range_vf: of the change of a value; likewise, or None for no clipping.
      target_kl: an update ends before the step at which the KL divergence exceeds 1.5 times this value; or None.
    """

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate", "clip_range", "clip_range_vf")
    RANGES: ClassVar[dict[str, tuple[float, float]]] = MinibatchSettings.RANGES | {
        "clip_range": (0, math.inf),
        "clip_range_vf": (0, math.inf),
        "target_kl": (0, math.inf),
    }
    STATISTICS: ClassVar[tuple[str, ...]] = (
        *("policy_gradient_loss", "value_loss", "entropy_loss", "clip_fraction", "approx_kl", "loss"),
    )

    clip_range: Real = 0.2
    clip_range_vf: Real | None = None
    target_kl: Any = None

    @property
    def _may_end(self) -> bool:
        return self.target_kl is not None

    def _goes_on(self, statistics: jax.Array) -> jax.Array:
        # Not `<=`: as in SB3, a divergence of NaN does not end the update.
        goes_on: jax.Array = ~(statistics[self.STATISTICS.index("approx_kl")] > 1.5 * self.target_kl)
        return goes_on

    def _evaluate(self, network: OnPolicyNetwork, params: Any, batch: Rollout) -> tuple[Distribution, jax.Array]:
        """Return the distributions over actions and the values of a minibatch."""
        return network.apply(params, batch.observation)

    def _loss(self, network: OnPolicyNetwork, params: Any, batch: Rollout) -> tuple[jax.Array, jax.Array]:
        distribution, value = self._evaluate(network, params, batch)
        log_prob = distribution.log_prob(batch.action)
        entropy = distribution.entropy()

        log_ratio = log_prob - batch.log_prob
        ratio = jnp.exp(log_ratio)
        clipped = _clamp(ratio, 1 - self.clip_range, 1 + self.clip_range)
        if self.clip_range_vf is not None:
            value = batch.value + _clamp(value - batch.value, -self.clip_range_vf, self.clip_range_vf)
        # Take the means of all of these in one reduction, because with a small batch each costs a kernel or two.
        terms = [
            -jnp.minimum(batch.advantage * ratio, batch.advantage * clipped),
            (batch.returns - value) ** 2,
            log_prob if entropy is None else -entropy,
            (jnp.abs(ratio - 1) > self.clip_range).astype(ratio.dtype),
            (ratio - 1) - log_ratio,  # http://joschu.net/blog/kl-approx.html
        ]
        policy_loss, value_loss, entropy_loss, *_ = means = jnp.stack(terms).mean(1)
        loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
        return loss, jnp.append(means, loss)

    def _metrics(self, statistics: jax.Array, took_place: jax.Array, going: jax.Array) -> dict[str, jax.Array]:
        """Return the metrics of an update, with `stopped_at_kl`, the divergence at which it ended early, else 0.

        `approx_kl` is the mean over the last epoch, and `loss` the value of the last step.
        """
        metrics = super()._metrics(statistics, took_place, going)
        weight = took_place[metrics["epochs"] - 1].astype(statistics.dtype)
        kl = statistics[metrics["epochs"] - 1, :, self.STATISTICS.index("approx_kl")]
        last = statistics.reshape(-1, len(self.STATISTICS))[took_place.sum() - 1]
        return metrics | {
            "approx_kl": (kl * weight).sum() / weight.sum(),
            "loss": last[self.STATISTICS.index("loss")],
            "stopped_at_kl": jnp.where(going, 0, last[self.STATISTICS.index("approx_kl")]),
        }


def _clamp(x: jax.Array, low: Real, high: Real) -> jax.Array:
    """Clip with PyTorch's gradient, which is 1 at the bounds too: a clip range of 0 keeps the first step's gradient."""
    return jnp.where(x < low, low, jnp.where(x > high, high, x))
