"""Batch renormalization (Ioffe 2017, https://arxiv.org/abs/1702.03275), as in sb3-contrib.

Features are normalized by running means and variances, which follow the statistics of the training batches. In
training, a batch is at first normalized by its own statistics, and after `warmup_steps` batches nearly by the running
ones: the difference is clipped, and gets no gradient.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxenvs.learn.devices import axis_size, psum


def renormalize(
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    momentum: float,
    eps: float,
    warmup_steps: float,
    rmax: float,
    dmax: float,
) -> jax.Array:
    """Normalize features in evaluation, by the running statistics.

    Args:
      x: (batch, n).
      mean, variance: running, (n,); scale, bias: learned, (n,).
      momentum: the share of a batch in the next running statistics.
      eps: added to variances.
      warmup_steps: this many batches, and one more, are normalized by their own statistics alone.
      rmax, dmax: bounds of the ratio of a batch's standard deviation to the running one, and of the distance of its
        mean, in running standard deviations.
    """
    return (x - mean) / jnp.sqrt(variance + eps) * scale + bias


class BatchStatistics:
    """Batch renormalization in training, one call per layer, which also computes the next running statistics.

    Attributes:
      steps: (layers,), how many batches each has seen.
      axis_name: of the devices whose parts together are the batch.
    """

    def __init__(self, steps: jax.Array, axis_name: str | None = None) -> None:
        self.steps, self.axis_name, self._new = steps, axis_name, list[jax.Array]()

    def renormalize(
        self,
        x: jax.Array,
        mean: jax.Array,
        variance: jax.Array,
        scale: jax.Array,
        bias: jax.Array,
        momentum: float,
        eps: float,
        warmup_steps: float,
        rmax: float,
        dmax: float,
    ) -> jax.Array:
        """Normalize a batch in training, with the arguments of the function `renormalize`."""
        is_warm = self.steps[len(self._new) // 2] > warmup_steps
        # Products, because XLA's CPU backend computes them, and their gradients, in less time than sums over rows.
        ones = jnp.ones((1, len(x)), x.dtype)
        product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
        number = len(x) * axis_size(self.axis_name)
        batch_mean = psum(product(ones, x)[0], self.axis_name) / number
        centred = x - batch_mean
        batch_variance = psum(product(ones, centred**2)[0], self.axis_name) / (number - 1)
        deviation, running = jnp.sqrt(batch_variance + eps), jnp.sqrt(variance + eps)
        r = jnp.where(is_warm, jnp.clip(deviation / running, 1 / rmax, rmax), 1)
        d = jnp.where(is_warm, jnp.clip((batch_mean - mean) / running, -dmax, dmax), 0)
        r, d = jax.lax.stop_gradient((r, d))
        # If a feature is constant over the whole batch, the gradient of the root is set to 0.
        varies = batch_variance > 0
        root = jnp.where(varies, jnp.sqrt(jnp.where(varies, batch_variance, 1)), 0)
        normal = (centred + d * root / r) * (1 / jnp.sqrt(batch_variance / r**2 + eps))
        following = mean + momentum * (batch_mean - mean), variance + momentum * (batch_variance - variance)
        self._new.extend(jax.lax.stop_gradient(following))
        return normal * scale + bias

    @property
    def new(self) -> jax.Array:
        """Means and variances of all layers, in the order of the calls, concatenated."""
        return jnp.concatenate(self._new) if self._new else jnp.zeros(0)
