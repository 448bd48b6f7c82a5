"""Base class of PPO and PQN: several passes over each rollout, in minibatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxenvs.environment import static, struct
from jaxenvs.learn import devices
from jaxenvs.learn.interfaces import OnPolicyNetwork
from jaxenvs.learn.learner_state import POLICY, LearnerState, Optimizers
from jaxenvs.learn.on_policy.collecting import Rollout, explained_variance
from jaxenvs.learn.on_policy.settings import OnPolicySettings
from jaxenvs.learn.optimization import apart, apply_gradients, ravel
from jaxenvs.transformations import varying
from jaxenvs.vector import join_axes


@struct
class MinibatchSettings(OnPolicySettings):
    """Base class of settings whose `update` takes several passes over a rollout, each in minibatches.

    A subclass defines `_loss`, which returns the loss and an array with the STATISTICS of a gradient step.

    Attributes:
      batch_size, n_epochs: size of the minibatches, of which the last of an epoch may be smaller; passes over a
        rollout.
    """

    COUNTS: ClassVar[tuple[str, ...]] = (*OnPolicySettings.COUNTS, "batch_size", "n_epochs")
    STATISTICS: ClassVar[tuple[str, ...]] = ()

    batch_size: int = static(default=64)
    n_epochs: int = static(default=10)

    def update(
        self,
        network: OnPolicyNetwork,
        optimizers: Optimizers,
        state: LearnerState,
        rollout: Rollout,
        key: jax.Array,
        permutations: jax.Array | None = None,
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Run all epochs of gradient steps on a rollout.

        Args:
          permutations: (n_epochs, n_steps * num_envs), the order of each epoch, where step t of environment i is t *
            num_envs + i. If not given, drawn from `key`. Over an axis: the order of this device's environments.

        Returns:
          The state, and metrics: the means of STATISTICS over the gradient steps, `explained_variance`, and `epochs`,
            how many were begun; PPO changes and adds some.
        """
        params, moments, tree_of, back = apart(state.params[POLICY], state.optimizer_states[POLICY])
        data = join_axes(rollout)
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
            return self._gradient_step(network, optimizers, tree_of, batch, carry)

        def epoch(carry: Any, rows: jax.Array) -> tuple[Any, Any]:
            full = rows[: size - remainder].reshape(num_full, batch_size)
            carry, seen = jax.lax.scan(step, carry, prepare(full))
            if remainder:
                carry, last = step(carry, prepare(rows[size - remainder :]))
                seen = jax.tree.map(lambda many, one: jnp.concatenate([many, one[None]]), seen, last)
            return carry, seen

        if permutations is None:
            permutations = self._orders(key, *rollout.value.shape)
        carry = varying((params, moments, jnp.asarray(True)), state, rollout, permutations)
        (*trained, going), (statistics, took_place) = jax.lax.scan(epoch, carry, permutations)
        params, moments = back((trained[0], trained[1]))
        if not self._may_end:
            statistics = devices.pmean(statistics, self.axis_name)
        metrics = self._metrics(statistics, took_place, going)
        metrics["explained_variance"] = explained_variance(rollout, self.axis_name)
        return LearnerState(
            params={POLICY: params},
            targets=state.targets,
            optimizer_states={POLICY: moments},
            num_updates=state.num_updates + metrics["epochs"].astype(jnp.int32),
        ), metrics

    def _gradient_step(
        self,
        network: OnPolicyNetwork,
        optimizers: Optimizers,
        tree_of: Callable[[Any], Any],
        batch: Rollout,
        carry: tuple[Any, Any, jax.Array],
    ) -> tuple[tuple[Any, Any, jax.Array], tuple[jax.Array, jax.Array]]:
        """Take one gradient step, unless the update has ended; also return STATISTICS, and whether it took place.

        Args:
          tree_of: makes the pytree of the parameters from the parameters of the carry.
          carry: the parameters as `apart` has them, the state of their optimizer, and whether the update continues.
        """
        params, optimizer_state, going = carry

        def descent() -> Any:
            tree = tree_of(params)
            gradient, statistics = jax.grad(self._loss, argnums=1, has_aux=True)(network, tree, batch)
            updated = apply_gradients(
                optimizers[POLICY],
                self.learning_rate,
                self.max_grad_norm,
                params,
                optimizer_state,
                gradient if tree is params else ravel(gradient)[0],
                self.axis_name,
            )
            return updated, statistics

        if not self._may_end:
            (params, optimizer_state), statistics = descent()
            return (params, optimizer_state, going), (statistics, going)

        def try_descent() -> Any:
            updated, statistics = descent()
            # With the mean, all devices end the update at the same step.
            statistics = devices.pmean(statistics, self.axis_name)
            goes_on = self._goes_on(statistics)
            kept = jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), updated, (params, optimizer_state))
            return (*kept, goes_on), statistics

        def stay() -> Any:
            nothing = jnp.zeros(len(self.STATISTICS), jax.tree.leaves(params)[0].dtype)
            return varying(((params, optimizer_state, going), nothing), carry, batch)

        after, statistics = jax.lax.cond(going, try_descent, stay)
        return after, (statistics, going)

    def _orders(self, key: jax.Array, n_steps: int, num_envs: int) -> jax.Array:
        """Draw the order of the rows in each epoch, as `update` takes it."""
        return jax.vmap(lambda key: permutation(key, n_steps * num_envs))(jax.random.split(key, self.n_epochs))

    @property
    def _may_end(self) -> bool:
        """Return whether an update may end before its last step."""
        return False

    def _goes_on(self, statistics: jax.Array) -> jax.Array:
        """Return whether an update with STATISTICS of its next step takes that step."""
        raise NotImplementedError(f"{type(self).__name__} does not define _goes_on.")

    def _loss(self, network: OnPolicyNetwork, params: Any, batch: Rollout) -> tuple[jax.Array, jax.Array]:
        raise NotImplementedError(f"{type(self).__name__} does not define _loss.")

    def _metrics(self, statistics: jax.Array, took_place: jax.Array, going: jax.Array) -> dict[str, jax.Array]:
        """Return the metrics of an update, from the STATISTICS of its steps: (n_epochs, steps, len(STATISTICS))."""
        weight = took_place.astype(statistics.dtype)
        means = (statistics * weight[..., None]).sum((0, 1)) / weight.sum()
        return dict(zip(self.STATISTICS, means, strict=True)) | {"epochs": took_place.any(axis=1).sum()}


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
