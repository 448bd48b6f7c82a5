"""The loss of quantiles of returns, which QR-DQN and TQC share, and the quantiles that TQC drops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.compilation.default_device import platform
from jaxenvs.transformations import varying

# One pass that keeps the largest values takes a thirtieth of the time of a sort for four of 50 values; its time grows
# with the number that it keeps.
MOST_KEPT = 16


def midpoints(num: int) -> np.ndarray:
    """Return the probabilities of `num` quantiles: float32, as in sb3-contrib, whatever the dtype of the networks."""
    return (np.arange(num, dtype=np.float32) + np.float32(0.5)) / np.float32(num)


@jax.custom_vjp
def quantile_huber_loss(quantiles: jax.Array, target: jax.Array) -> jax.Array:
    """Compute each transition's mean quantile Huber loss (Dabney et al. 2018, equation 10), over all pairs.

    The gradient with respect to `target` is not computed: targets are constants.

    Args:
      quantiles: (..., n, batch), at `midpoints(n)`.
      target: (m, batch), samples of the distribution whose quantiles are estimated.

    Returns:
      (..., batch), means over n and m.
    """
    return _loss_and_slope(quantiles, target)[0]


def _loss_and_slope(quantiles: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute the loss, and its derivative with respect to each quantile, in one pass over the pairs."""
    num, num_targets = quantiles.shape[-2], target.shape[0]
    share = jnp.asarray(midpoints(num), quantiles.dtype)[:, None]

    def of_one(target: jax.Array) -> tuple[jax.Array, jax.Array]:
        error = target - quantiles
        clipped = jnp.clip(error, -1, 1)
        slope = jnp.where(error < 0, 1 - share, share) * clipped
        return slope * (error - 0.5 * clipped), slope  # error**2 / 2 within 1, |error| - 1/2 beyond

    if platform() == "cpu":
        # All pairs at once do not fit into the caches, and take XLA nine times as long.
        def add(index: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            loss, slope = of_one(jax.lax.dynamic_index_in_dim(target, index, keepdims=False))
            return sums[0] + loss, sums[1] + slope

        zero = varying(jnp.zeros_like(quantiles), quantiles, target)
        losses, slopes = jax.lax.fori_loop(0, num_targets, add, (zero, zero))
    else:
        losses, slopes = (each.sum(0) for each in jax.vmap(of_one)(target))
    return losses.sum(-2) / (num * num_targets), -slopes / (num * num_targets)


def _forward(quantiles: jax.Array, target: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    loss, slope = _loss_and_slope(quantiles, target)
    return loss, (slope, target)


def _backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    slope, target = kept
    return gradient[..., None, :] * slope, jnp.zeros_like(target)


quantile_huber_loss.defvjp(_forward, _backward)


def without_largest(values: jax.Array, num: int) -> jax.Array:
    """Return all except the `num` largest values, (n - num, batch), of (n, batch); in any order."""
    if num > MOST_KEPT:
        return jnp.sort(values, axis=0)[: len(values) - num]

    def insert(largest: tuple[jax.Array, ...], value: jax.Array) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """Insert a value into the largest so far, which are sorted; return them and the value that drops out."""
        kept = []
        for each in largest:
            kept.append(jnp.maximum(each, value))
            value = jnp.minimum(each, value)
        return tuple(kept), value

    nothing = varying(jnp.full(values.shape[1:], -jnp.inf, values.dtype), values)
    return jax.lax.scan(insert, (nothing,) * num, values)[1][num:]
