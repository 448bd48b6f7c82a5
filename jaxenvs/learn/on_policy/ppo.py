"""Proximal policy optimization (Schulman et al. 2017, https://arxiv.org/abs/1707.06347), as in Stable-Baselines3."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxenvs.environment import static, struct
from jaxenvs.learn import devices
from jaxenvs.learn.interfaces import OnPolicyNetwork
from jaxenvs.learn.learner_state import POLICY, LearnerState, Optimizers
from jaxenvs.learn.networks.distributions import Distribution
from jaxenvs.learn.on_policy.collecting import Rollout, explained_variance
from jaxenvs.learn.on_policy.settings import OnPolicySettings
from jaxenvs.learn.optimization import apply_gradients, ravel
from jaxenvs.transformations import varying

# The statistics of a gradient step, in this order.
STATISTICS = ("policy_gradient_loss", "value_loss", "entropy_loss", "clip_fraction", "approx_kl", "loss")


@struct
class PPO(OnPolicySettings):
    """Proximal policy optimization (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

    The usual first choice for fast environments, with discrete or continuous actions. Its settings are the attributes
    of OnPolicySettings, with SB3's defaults, and:

    Attributes:
      batch_size, n_epochs: size of the minibatches, of which the last of an epoch may be smaller; passes over a
        rollout.
      clip_range: of the probability ratio; a float, or an array with one for each iteration.
      clip_range_vf: of the change of a value; likewise, or None for no clipping.
      target_kl: an update ends before the step at which the KL divergence exceeds 1.5 times this value; or None.
    """

    SCHEDULED: ClassVar[tuple[str, ...]] = ("learning_rate", "clip_range", "clip_range_vf")
    RANGES: ClassVar[dict[str, tuple[float, float]]] = OnPolicySettings.RANGES | {
        "clip_range": (0, math.inf),
        "clip_range_vf": (0, math.inf),
        "target_kl": (0, math.inf),
    }
    COUNTS: ClassVar[tuple[str, ...]] = (*OnPolicySettings.COUNTS, "batch_size", "n_epochs")

    batch_size: int = static(default=64)
    n_epochs: int = static(default=10)
    clip_range: Any = 0.2
    clip_range_vf: Any = None
    target_kl: Any = None

    def update(
        self,
        network: OnPolicyNetwork,
        optimizers: Optimizers,
        state: LearnerState,
        rollout: Rollout,
        key: jax.Array,
        permutations: jax.Array | None = None,
    ) -> tuple[LearnerState, dict[str, Any]]:
        """Run all epochs of gradient steps on a rollout.

        Args:
          permutations: (n_epochs, n_steps * num_envs), the order of each epoch, where step t of environment i is t *
            num_envs + i. If not given, drawn from `key`. Over an axis: the order of this device's environments.

        Returns:
          The state, and metrics: means over the gradient steps, except that `approx_kl` is the mean over the last epoch
            and `loss` the value of the last step; `explained_variance`; `epochs`, how many were begun; and
            `stopped_at_kl`, the divergence at which the update ended early, else 0.
        """
        params, unravel = ravel(state.params[POLICY])
        data = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rollout)
        size = data.value.shape[0]
        batch_size = min(self.batch_size // devices.axis_size(self.axis_name), size)
        num_full, remainder = divmod(size, batch_size)

        def prepare(rows: jax.Array) -> tuple[jax.Array, Rollout]:
            """Take minibatches of the given rows, (..., batch_size), without the observations, which may be large."""
            batch = jax.tree.map(lambda leaf: leaf[rows], dataclasses.replace(data, observation=None, reward=None))
            if self.normalize_advantage and rows.shape[-1] * devices.axis_size(self.axis_name) > 1:
                advantage = batch.advantage - devices.mean(batch.advantage, -1, self.axis_name, keepdims=True)
                deviation = devices.std(batch.advantage, -1, self.axis_name, ddof=1, keepdims=True)
                batch = dataclasses.replace(batch, advantage=advantage / (deviation + 1e-8))
            return rows, batch

        def step(carry: Any, prepared: tuple[jax.Array, Rollout]) -> tuple[Any, Any]:
            rows, batch = prepared
            batch = dataclasses.replace(batch, observation=jax.tree.map(lambda leaf: leaf[rows], data.observation))
            return self._gradient_step(network, optimizers, unravel, batch, carry)

        def epoch(carry: Any, rows: jax.Array) -> tuple[Any, Any]:
            full = rows[: size - remainder].reshape(num_full, batch_size)
            carry, seen = jax.lax.scan(step, carry, prepare(full))
            if remainder:
                carry, last = step(carry, prepare(rows[size - remainder :]))
                seen = jax.tree.map(lambda many, one: jnp.concatenate([many, one[None]]), seen, last)
            return carry, seen

        if permutations is None:
            permutations = self._orders(key, *rollout.value.shape)
        carry = varying((params, state.optimizer_states[POLICY], jnp.asarray(True)), state, rollout, permutations)
        (params, optimizer_state, going), (statistics, took_place) = jax.lax.scan(epoch, carry, permutations)
        if self.target_kl is None:
            statistics = devices.pmean(statistics, self.axis_name)
        metrics = _metrics(statistics, took_place, going)
        metrics["explained_variance"] = explained_variance(rollout, self.axis_name)
        return LearnerState(
            params={POLICY: unravel(params)},
            targets=state.targets,
            optimizer_states={POLICY: optimizer_state},
            num_updates=state.num_updates + metrics["epochs"].astype(jnp.int32),
        ), metrics

    def _gradient_step(
        self,
        network: OnPolicyNetwork,
        optimizers: Optimizers,
        unravel: Any,
        batch: Rollout,
        carry: tuple[Any, Any, Any],
    ) -> tuple[tuple[Any, Any, Any], tuple[jax.Array, jax.Array]]:
        """Take one gradient step, unless the update has ended; also return STATISTICS, and whether it took place.

        Args:
          carry: the vector of the parameters, the state of its optimizer, and whether the update continues.
        """
        params, optimizer_state, going = carry

        def descent() -> Any:
            tree = unravel(params)
            gradient, statistics = jax.grad(self._loss, argnums=1, has_aux=True)(network, tree, batch)
            updated = apply_gradients(
                optimizers[POLICY],
                self.learning_rate,
                self.max_grad_norm,
                params,
                optimizer_state,
                ravel(gradient)[0],
                self.axis_name,
            )
            return updated, statistics

        if self.target_kl is None:
            (params, optimizer_state), statistics = descent()
            return (params, optimizer_state, going), (statistics, going)

        def try_descent() -> Any:
            updated, statistics = descent()
            # With the mean, all devices end the update at the same step.
            statistics = devices.pmean(statistics, self.axis_name)
            # Not `<=`: as in SB3, a divergence of NaN does not end the update.
            near = ~(statistics[STATISTICS.index("approx_kl")] > 1.5 * self.target_kl)
            kept = jax.tree.map(lambda new, old: jnp.where(near, new, old), updated, (params, optimizer_state))
            return (*kept, near), statistics

        def stay() -> Any:
            unchanged = (params, optimizer_state, going), jnp.zeros(len(STATISTICS), params.dtype)
            return varying(unchanged, carry, batch)

        after, statistics = jax.lax.cond(going, try_descent, stay)
        return after, (statistics, going)

    def _orders(self, key: jax.Array, n_steps: int, num_envs: int) -> jax.Array:
        """Draw the order of the rows in each epoch, as `update` takes it."""
        return jax.vmap(lambda key: permutation(key, n_steps * num_envs))(jax.random.split(key, self.n_epochs))

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


def _clamp(x: jax.Array, low: Any, high: Any) -> jax.Array:
    """Clip with PyTorch's gradient, which is 1 at the bounds too: a clip range of 0 keeps the first step's gradient."""
    return jnp.where(x < low, low, jnp.where(x > high, high, x))


def permutation(key: jax.Array, size: int) -> jax.Array:
    """Draw a random order of 0, ..., size - 1: int32 (size,).

    One sort of integers, with random high bits and the number itself in the low bits, takes a third of the time of a
    sort by random keys. Where the random bits are equal, the smaller number comes first, so there must be enough of
    them.
    """
    bits_below = max(size - 1, 1).bit_length()
    bits = jax.random.bits(key, (size,), jnp.uint32)
    if bits_below > 13:
        return jnp.argsort(bits).astype(jnp.int32)
    numbers = jnp.arange(size, dtype=jnp.uint32)
    return (jnp.sort((bits << bits_below) | numbers) & ((1 << bits_below) - 1)).astype(jnp.int32)


def _metrics(statistics: jax.Array, took_place: jax.Array, going: jax.Array) -> dict[str, Any]:
    """Return the metrics of an update, from the STATISTICS of its steps: (n_epochs, steps, len(STATISTICS))."""
    weight = took_place.astype(statistics.dtype)
    count = weight.sum()
    metrics = dict(zip(STATISTICS, (statistics * weight[..., None]).sum((0, 1)) / count, strict=True))
    epochs = took_place.any(axis=1).sum()
    last_weight = weight[epochs - 1]
    kl = statistics[epochs - 1, :, STATISTICS.index("approx_kl")]
    last = statistics.reshape(-1, len(STATISTICS))[took_place.sum() - 1]
    return metrics | {
        "approx_kl": (kl * last_weight).sum() / last_weight.sum(),
        "loss": last[STATISTICS.index("loss")],
        "epochs": epochs,
        "stopped_at_kl": jnp.where(going, 0, last[STATISTICS.index("approx_kl")]),
    }
