"""Distributions over actions, a batch at a time.

Noise is drawn separately from its use: `noise` needs only shapes, so that the noise of a whole rollout comes from one
draw, before the policy has seen an observation. Draw one sample with `d.sample(d.noise(key, 1)[0])`.
"""

from __future__ import annotations

import itertools
import math
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import static, struct


class Distribution(Protocol):
    """Distribution over a batch of actions, as a policy returns it. All methods except `noise` are differentiable where
    that makes sense.
    """

    def noise(self, key: jax.Array, num: int) -> jax.Array:
        """Draw the noise of `num` batches like this one: leading axis `num`. Uses shapes and dtypes only."""

    def sample(self, noise: jax.Array) -> jax.Array:
        """Return a batch of actions. Equal noise gives equal actions."""

    def mode(self) -> jax.Array:
        """Return the most likely actions; the mean of a Gaussian."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Return the log-probability of each whole action, (batch,)."""

    def entropy(self) -> jax.Array | None:
        """Return the entropy, (batch,); None where there is no formula."""


# Logits of illegal actions, as in sb3-contrib: such actions have no probability, and no gradient.
ILLEGAL = -1e8


def _legal(mask: jax.Array, logits: jax.Array) -> jax.Array:
    """Return which logits belong to legal actions. As in sb3-contrib, a mask may have any shape of the right size."""
    if mask.size != logits.size:
        raise ValueError(f"action masks must have shape {logits.shape}, got {mask.shape}.")
    return mask.reshape(logits.shape) != 0


@struct
class Categorical:
    """Distribution over n actions: int32 (batch,).

    Attributes:
      logits: (batch, n).
      mask: which actions are legal, (batch, n); or None.
    """

    logits: jax.Array
    mask: jax.Array | None = None

    def masked(self, mask: jax.Array) -> Categorical:
        """Return the distribution without the illegal actions, which have 0 in the mask, (batch, n).

        Raises:
          ValueError: the mask has another size.
        """
        legal = _legal(mask, self.logits)
        return Categorical(jnp.where(legal, self.logits, ILLEGAL), legal)

    def noise(self, key: jax.Array, num: int) -> jax.Array:
        return jax.random.gumbel(key, (num, *self.logits.shape), self.logits.dtype)

    def sample(self, noise: jax.Array) -> jax.Array:
        logits = self.logits
        if self.mask is not None:
            # If no action is legal, all are equally likely, as in sb3-contrib: noise added to ILLEGAL would be rounded
            # off.
            logits = jnp.where(self.mask.any(axis=-1, keepdims=True), logits, 0)
        return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        log_probs = jax.nn.log_softmax(self.logits)
        # Compare with every action rather than index, because the gradient of indexing would be a scatter.
        chosen = action[..., None].astype(jnp.int32) == jnp.arange(self.logits.shape[-1], dtype=jnp.int32)
        return jnp.sum(jnp.where(chosen, log_probs, 0), axis=-1)

    def entropy(self) -> jax.Array:
        log_probs = jax.nn.log_softmax(self.logits)
        terms = jnp.exp(log_probs) * log_probs
        return -jnp.sum(terms if self.mask is None else jnp.where(self.mask, terms, 0), axis=-1)


@struct
class MultiCategorical:
    """Distribution over several independent choices: int32 (batch, len(nvec)).

    Attributes:
      logits: (batch, sum(nvec)), side by side.
      nvec: the number of options of each choice.
      mask: which options are legal, (batch, sum(nvec)); or None.
    """

    logits: jax.Array
    nvec: tuple[int, ...] = static()
    mask: jax.Array | None = None

    def masked(self, mask: jax.Array) -> MultiCategorical:
        """Return the distribution without the illegal options, which have 0 in the mask, (batch, sum(nvec)).

        Raises:
          ValueError: the mask has another size.
        """
        legal = _legal(mask, self.logits)
        return MultiCategorical(jnp.where(legal, self.logits, ILLEGAL), self.nvec, legal)

    def noise(self, key: jax.Array, num: int) -> jax.Array:
        return jax.random.gumbel(key, (num, *self.logits.shape), self.logits.dtype)

    def sample(self, noise: jax.Array) -> jax.Array:
        noises = self._runs(noise)
        return jnp.concatenate([run.sample(each) for run, each in zip(self._categoricals(), noises)], axis=-1)

    def mode(self) -> jax.Array:
        return jnp.concatenate([run.mode() for run in self._categoricals()], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        runs = self._categoricals()
        actions = jax.lax.split(action, [run.logits.shape[-2] for run in runs], axis=action.ndim - 1)
        log_probs = [run.log_prob(each) for run, each in zip(runs, actions)]
        return jnp.sum(jnp.concatenate(log_probs, axis=-1), axis=-1)

    def entropy(self) -> jax.Array:
        return jnp.sum(jnp.concatenate([run.entropy() for run in self._categoricals()], axis=-1), axis=-1)

    def _categoricals(self) -> list[Categorical]:
        """Return a distribution for each run of choices that have equally many options, (batch, choices)."""
        runs = self._runs(self.logits)
        masks = [None] * len(runs) if self.mask is None else self._runs(self.mask)
        return [Categorical(run, mask) for run, mask in zip(runs, masks)]

    def _runs(self, values: jax.Array) -> list[jax.Array]:
        """Return values of all options as (..., choices, options) for each run of choices."""
        # Not choice by choice: code for each would take long to compile.
        shapes = [(len([*run]), options) for options, run in itertools.groupby(self.nvec)]
        parts = jax.lax.split(values, [math.prod(shape) for shape in shapes], axis=values.ndim - 1)
        return [part.reshape(*part.shape[:-1], *shape) for part, shape in zip(parts, shapes)]


@struct
class Bernoulli:
    """Distribution over independent bits: int32 (batch, n), 0 or 1.

    Attributes:
      logits: (batch, n).
    """

    logits: jax.Array

    def masked(self, mask: jax.Array) -> MultiCategorical:
        """Return the distribution without illegal values: the mask has an entry for 0 and one for 1 of each bit,
        (batch, 2 * n).
        """
        pairs = jnp.stack([jnp.zeros_like(self.logits), self.logits], axis=-1)
        pairs = pairs.reshape(*self.logits.shape[:-1], -1)
        return MultiCategorical(pairs, (2,) * self.logits.shape[-1]).masked(mask)

    def noise(self, key: jax.Array, num: int) -> jax.Array:
        return jax.random.logistic(key, (num, *self.logits.shape), self.logits.dtype)

    def sample(self, noise: jax.Array) -> jax.Array:
        return (self.logits + noise > 0).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return (self.logits > 0).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.sum(action * self.logits - jax.nn.softplus(self.logits), axis=-1)

    def entropy(self) -> jax.Array:
        return jnp.sum(jax.nn.softplus(self.logits) - jax.nn.sigmoid(self.logits) * self.logits, axis=-1)


HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


@struct
class DiagonalGaussian:
    """Distribution of independent normal numbers: float (batch, n).

    Attributes:
      mean: (batch, n).
      log_std: (n,) or (batch, n).
    """

    mean: jax.Array
    log_std: jax.Array

    def noise(self, key: jax.Array, num: int) -> jax.Array:
        return jax.random.normal(key, (num, *self.mean.shape), self.mean.dtype)

    def sample(self, noise: jax.Array) -> jax.Array:
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        scaled = (action - self.mean) / jnp.exp(self.log_std)
        return -jnp.sum(0.5 * scaled**2 + self.log_std + HALF_LOG_TWO_PI, axis=-1)

    def entropy(self) -> jax.Array:
        return jnp.sum(jnp.broadcast_to(0.5 + HALF_LOG_TWO_PI + self.log_std, self.mean.shape), axis=-1)


@struct
class SquashedGaussian:
    """Distribution of the tanh of independent normal numbers: float (batch, n), in (-1, 1).

    Attributes:
      mean, log_std: (batch, n).
      epsilon: SB3's, which keeps logarithms finite.
    """

    mean: jax.Array
    log_std: jax.Array
    epsilon: float = static(default=1e-6)

    def noise(self, key: jax.Array, num: int) -> jax.Array:
        return self._gaussian().noise(key, num)

    def sample(self, noise: jax.Array) -> jax.Array:
        return jnp.tanh(self._gaussian().sample(noise))

    def mode(self) -> jax.Array:
        return jnp.tanh(self.mean)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return self._gaussian().log_prob(_arctanh(action)) - self._correction(action)

    def sample_and_log_prob(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return actions and their log-probabilities, without the arctanh, which loses digits near the bounds."""
        action = self.sample(noise)
        log_prob = -jnp.sum(0.5 * noise**2 + self.log_std + HALF_LOG_TWO_PI, axis=-1)
        return action, log_prob - self._correction(action)

    def entropy(self) -> None:
        return None

    def _gaussian(self) -> DiagonalGaussian:
        return DiagonalGaussian(self.mean, self.log_std)

    def _correction(self, action: jax.Array) -> jax.Array:
        return jnp.sum(jnp.log(1 - action**2 + self.epsilon), axis=-1)


def _arctanh(action: jax.Array) -> jax.Array:
    """Return the arctanh, finite also at the bounds."""
    limit = 1 - np.finfo(action.dtype).eps
    return jnp.arctanh(jnp.clip(action, -limit, limit))


@struct
class StateDependentGaussian:
    """Generalized state-dependent exploration (Raffin, Kober & Stulp 2021, https://arxiv.org/abs/2005.05719).

    The noise of an action is `latent @ matrix` with a random matrix, so that it is a smooth function of the state for
    as long as the matrix stays the same. The `noise` here is therefore a key for each batch, from which each row draws
    its matrix; or, as `matrix_noise` draws it, one matrix for all rows.

    Attributes:
      mean: (batch, n).
      latent: (batch, features).
      log_std: of the entries of the matrix, (features, n) or (features, 1).
      squash: whether actions are the tanh of the Gaussian.
      expln: whether the standard deviation grows like a logarithm above 1, instead of exponentially.
      learn_features: whether gradients flow through the latent.
      epsilon: SB3's, which keeps square roots, logarithms and the arctanh finite.
    """

    mean: jax.Array
    latent: jax.Array
    log_std: jax.Array
    squash: bool = static(default=False)
    expln: bool = static(default=False)
    learn_features: bool = static(default=False)
    epsilon: float = static(default=1e-6)

    def noise(self, key: jax.Array, num: int) -> jax.Array:
        return jax.random.split(key, num)

    def matrix_noise(self, key: jax.Array, num: int) -> jax.Array:
        """Draw the noise of `num` batches, each with one matrix for all of its rows: (num, features, n)."""
        return jax.random.normal(key, (num, self.latent.shape[-1], self.mean.shape[-1]), self.mean.dtype)

    def sample(self, noise: jax.Array) -> jax.Array:
        std = jnp.broadcast_to(self._std(), (self.latent.shape[-1], self.mean.shape[-1]))
        if jnp.issubdtype(noise.dtype, jax.dtypes.prng_key):
            matrices = std * jax.random.normal(noise, (self.mean.shape[0], *std.shape), self.mean.dtype)
            gaussian = self.mean + jnp.einsum("bf,bfn->bn", self._latent(), matrices)
        else:
            gaussian = self.mean + jnp.matmul(self._latent(), std * noise)
        return jnp.tanh(gaussian) if self.squash else gaussian

    def mode(self) -> jax.Array:
        return jnp.tanh(self.mean) if self.squash else self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        if not self.squash:
            return self._gaussian().log_prob(action)
        gaussian = _arctanh(action)
        correction = jnp.log(1 - jnp.tanh(gaussian) ** 2 + self.epsilon)
        return self._gaussian().log_prob(gaussian) - jnp.sum(correction, axis=-1)

    def sample_and_log_prob(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return a batch of actions and `log_prob` of each."""
        action = self.sample(noise)
        return action, self.log_prob(action)

    def entropy(self) -> jax.Array | None:
        return None if self.squash else self._gaussian().entropy()

    def _latent(self) -> jax.Array:
        return self.latent if self.learn_features else jax.lax.stop_gradient(self.latent)

    def _std(self) -> jax.Array:
        if not self.expln:
            return jnp.exp(self.log_std)
        positive = jnp.maximum(self.log_std, 0) + self.epsilon
        return jnp.where(self.log_std > 0, jnp.log1p(positive) + 1, jnp.exp(self.log_std))

    def _gaussian(self) -> DiagonalGaussian:
        latent = self._latent()
        variance = jnp.matmul(latent**2, jnp.broadcast_to(self._std() ** 2, (latent.shape[-1], self.mean.shape[-1])))
        return DiagonalGaussian(self.mean, 0.5 * jnp.log(variance + self.epsilon))
