"""The loss of quantiles of returns, which QR-DQN and TQC share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def midpoints(num: int) -> np.ndarray:
    """The shares of which `num` quantiles are: float32, as sb3-contrib's, whatever the dtype of the networks."""
    return (np.arange(num, dtype=np.float32) + np.float32(0.5)) / np.float32(num)


@jax.custom_vjp
def quantile_huber_loss(quantiles: jax.Array, target: jax.Array) -> jax.Array:
    """The mean quantile Huber loss of each transition (Dabney et al. 2018, equation 10), over all pairs.

    The gradient with respect to `target` is not computed: targets are constants.

    Args:
      quantiles: (..., n), at `midpoints(n)`.
      target: (..., m), samples of what they are quantiles of.

    Returns:
      (...), means over n and m.
    """
    return _loss_and_slope(quantiles, target)[0]


def _loss_and_slope(quantiles: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The loss, and its derivative with respect to each quantile, from one look at the pairs."""
    share = jnp.asarray(midpoints(quantiles.shape[-1]), quantiles.dtype)[:, None]
    error = target[..., None, :] - quantiles[..., :, None]
    weight = jnp.where(error < 0, 1 - share, share)
    clipped = jnp.clip(error, -1, 1)
    # |error| - 1/2 beyond 1, error**2 / 2 within.
    huber = clipped * (error - 0.5 * clipped)
    slope = -jnp.mean(weight * clipped, axis=-1) / quantiles.shape[-1]
    return jnp.mean(weight * huber, axis=(-2, -1)), slope


def _forward(quantiles: jax.Array, target: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    loss, slope = _loss_and_slope(quantiles, target)
    return loss, (slope, target)


def _backward(kept: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    slope, target = kept
    return gradient[..., None] * slope, jnp.zeros_like(target)


quantile_huber_loss.defvjp(_forward, _backward)
