"""Collect rollouts: a policy acts in environments for some steps, for an on-policy algorithm to learn from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxenvs.compilation.default_device import platform
from jaxenvs.environment import struct
from jaxenvs.jax_names import partition_spec
from jaxenvs.learn import devices
from jaxenvs.learn.interfaces import Arrays, CollectorState, Masked, Observation, OnPolicyNetwork, Real, Recalled, Step
from jaxenvs.transformations import varying
from jaxenvs.vector import VectorEnv, VectorTimeStep, join_axes, replace_where
from jaxenvs.wrappers.action_masker import action_masks

# Observations of at least this many bytes count as large: their network is expensive, and so is memory for a second
# copy.
LARGE_OBSERVATION = 1024
# Values are computed in chunks of at most this many rows, and at most this many bytes of observations.
MOST_ROWS, MOST_BYTES = 16384, 2**25


@struct
class Rollout:
    """Steps that an update learns from. Every leaf has the leading axes (n_steps, num_envs).

    Attributes:
      observation, action: what the policy saw, and its action.
      log_prob, value: the log-probability of the action, and the value of the observation.
      reward: as the policy sees it; where an episode was truncated, plus the discounted value of its last observation.
      advantage, returns: as `advantages` returns them, and their sum with the values.
    """

    observation: Observation
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    advantage: jax.Array
    returns: jax.Array

    def layout(self, sharded: PartitionSpec, same: PartitionSpec) -> PartitionSpec:
        """Return the spec of all leaves: the environments are the second axis."""
        return partition_spec(None, *sharded)


def collect(
    network: OnPolicyNetwork,
    params: Any,
    step: Step,
    start: CollectorState,
    key: jax.Array,
    n_steps: int,
    *,
    gamma: Real,
    gae_lambda: Real,
    gae_gamma: Real | None = None,
    sde_sample_freq: int = 1,
) -> tuple[CollectorState, Rollout, Any]:
    """Act for `n_steps` steps in every environment, and compute advantages.

    Args:
      network, params: from parameters and observations to a distribution over actions and values.
      step: from the state of the environments and a batch of actions to the state, the VectorTimeStep as the policy
        sees it, and any further output of each step.
      start: what the previous call returned, or `CollectorState(state, timestep.observation)` after a reset.
      key: a typed key, for the actions.
      n_steps: of each environment; static.
      gamma, gae_lambda: discount, and the lambda of generalized advantage estimation.
      gae_gamma: the discount of the advantages, if it differs from the discount of the values behind a truncation.
      sde_sample_freq: how many steps use the same noise: 1, except for state-dependent exploration.

    Returns:
      The state to continue from; the rollout; and the further outputs of `step`, stacked. In a jitted function, results
      that you do not use are not computed.
    """
    in_the_loop = values_are_known_early(start.observation)

    def act(state: CollectorState, noise: jax.Array) -> tuple[CollectorState, Any]:
        distribution, value = network.apply(params, state.observation)
        action = distribution.sample(noise)
        env_state, timestep, outputs = step(state.env_state, network.to_env(action))
        truncated = timestep.truncated & ~timestep.terminated
        observation, final_observation = _seen_next(network, params, state.observation, timestep)
        if in_the_loop:
            bootstrap = _values_behind(network, params, truncated, final_observation, value)
            seen: Any = (distribution.log_prob(action), value, bootstrap)
        else:
            seen = (distribution, truncated, final_observation)
        kept = (state.observation, action, timestep.reward, timestep.done, seen, outputs)
        return CollectorState(env_state, observation), kept

    start = dataclasses.replace(start, observation=_as_the_network_gives(start.observation, params))
    start = varying(start, start, params, key)
    noise = rollout_noise(network, params, start.observation, key, n_steps, sde_sample_freq)
    end, (observation, action, reward, done, seen, outputs) = jax.lax.scan(act, start, noise)
    if in_the_loop:
        log_prob, value, bootstrap = seen
    else:
        distribution, truncated, final_observation = seen
        log_prob = jax.vmap(lambda distribution, action: distribution.log_prob(action))(distribution, action)
        value, bootstrap = values_of_steps(network, params, observation, truncated, final_observation)
    discount = gamma if gae_gamma is None else gae_gamma
    results = with_advantages(
        network, params, reward, value, bootstrap, done, end.observation, gamma, discount, gae_lambda
    )
    return end, Rollout(observation, action, log_prob, value, *results), outputs


def values_of_steps(
    network: OnPolicyNetwork, params: Any, observation: Observation, truncated: Any, final_observation: Observation
) -> tuple[jax.Array, jax.Array]:
    """Return the values of all observations of a rollout, and of the last ones of truncated episodes, else 0.

    Args:
      network, params: as in `collect`.
      observation, truncated, final_observation: with the leading axes (n_steps, num_envs).
    """

    def values(observation: Observation) -> jax.Array:
        return network.apply(params, observation)[1]

    value = in_chunks(values, observation)
    bootstrap = _values_behind(network, params, *join_axes((truncated, final_observation, value)))
    return value, bootstrap.reshape(value.shape)


def with_advantages(
    network: OnPolicyNetwork,
    params: Any,
    reward: jax.Array,
    value: jax.Array,
    bootstrap: jax.Array,
    done: jax.Array,
    last: Observation,
    gamma: Real,
    gae_gamma: Real,
    gae_lambda: Real,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the rewards with what follows a truncation, the advantages, and the returns of a rollout.

    Args:
      last: the observation after the rollout; bootstrap: as `values_of_steps` returns it; others: as in `collect`.
    """
    reward = reward.astype(value.dtype) + gamma * bootstrap
    advantage = advantages(reward, value, done, network.apply(params, last)[1], gae_gamma, gae_lambda)
    return reward, advantage, advantage + value


def values_are_known_early(observation: Observation) -> bool:
    """Return whether values are computed in the loop over the steps.

    Values of small observations are cheapest for all steps at once. Values of large ones (images) come from the pass
    that chooses the action, and values behind a truncation from the step that truncates, so that neither a second pass
    nor a stack of last observations is needed. Not on a GPU, where a step cannot ask whether any episode was truncated
    without waiting for the host.
    """
    leaves = jax.tree.leaves(observation)
    row_bytes = sum(leaf.nbytes for leaf in leaves) // leaves[0].shape[0]
    return bool(row_bytes >= LARGE_OBSERVATION and platform() == "cpu")


def _values_behind(
    network: OnPolicyNetwork, params: Any, truncated: jax.Array, final_observation: Observation, like: jax.Array
) -> jax.Array:
    """Return the values of last observations where an episode was truncated, else 0. As rare as a restart."""
    value: jax.Array = replace_where(
        lambda params, last: network.apply(params, last)[1],
        truncated,
        jnp.zeros_like(like),
        params,
        final_observation,
    )
    return value


def _as_the_network_gives(observation: Observation, params: Any) -> Observation:
    """Cast the recurrent states before the first step to the dtype of the recurrent states after it."""
    if not isinstance(observation, Recalled):
        return observation
    dtype = jax.tree.leaves(params)[0].dtype
    memory = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), observation.memory)
    return dataclasses.replace(observation, memory=memory)


def _seen_next(
    network: Any, params: Any, seen: Observation, timestep: VectorTimeStep
) -> tuple[Observation, Observation]:
    """Return the next observations and the last ones before a reset, with recurrent states if the network has any."""
    if not isinstance(seen, Recalled):
        return timestep.observation, timestep.final_observation
    memory = network.recall(params, seen)
    goes_on = jnp.zeros_like(timestep.done)
    return Recalled(timestep.observation, memory, timestep.done), Recalled(timestep.final_observation, memory, goes_on)


def masked_step(venv: VectorEnv, step: Step) -> Step:
    """Return a step whose observations are Masked.

    Args:
      venv: environments with `action_masks`.
      step: a step of these environments, on a pair whose first part is their state.
    """

    def masked(state: Any, action: jax.Array) -> tuple[Any, VectorTimeStep, Any]:
        state, timestep, outputs = step(state, action)
        # The last observation of an episode needs no mask: only its value is used, which does not depend on legal
        # actions.
        return state, timestep.replace(observation=masked_observation(venv, state, timestep.observation)), outputs

    return masked


def masked_observation(venv: VectorEnv, state: tuple[Any, object], observation: Arrays) -> Masked:
    """Combine an observation with the masks of a state, as `masked_step` does."""
    return Masked(observation, action_masks(venv, state[0]))


def rollout_noise(
    network: OnPolicyNetwork, params: Any, observation: Observation, key: jax.Array, n_steps: int, sde_sample_freq: int
) -> jax.Array:
    """Draw the noise of every step of a rollout at once.

    Raises:
      ValueError: the values of the network do not have the shape (batch,).
    """
    distribution, value = jax.eval_shape(network.apply, params, observation)
    if value.ndim != 1:
        raise ValueError(
            f"network.apply of {type(network).__name__} must return values of the shape (batch,), got {value.shape}: "
            "return values[:, 0]."
        )
    noise: jax.Array = distribution.noise(key, -(-n_steps // sde_sample_freq))
    return noise if sde_sample_freq == 1 else noise[jnp.arange(n_steps) // sde_sample_freq]


def in_chunks(rows: Callable[[Any], Any], inputs: Any) -> Any:
    """Apply `rows` to inputs with the leading axes (n_steps, num_envs), in as few chunks as memory allows.

    Args:
      rows: from inputs with one leading axis to arrays with that axis, row by row.
    """
    n_steps, num_envs = jax.tree.leaves(inputs)[0].shape[:2]
    row_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(inputs)) // (n_steps * num_envs)
    most = max(1, min(MOST_ROWS, MOST_BYTES // max(row_bytes, 1)) // num_envs)
    steps = max(size for size in range(1, n_steps + 1) if n_steps % size == 0 and (size <= most or size == 1))
    chunks = jax.tree.map(lambda leaf: leaf.reshape(n_steps // steps, steps * num_envs, *leaf.shape[2:]), inputs)
    # A single chunk stays outside of a loop, where XLA compiles it better.
    results = rows(jax.tree.map(lambda leaf: leaf[0], chunks)) if steps == n_steps else jax.lax.map(rows, chunks)
    lead = 1 if steps == n_steps else 2
    return jax.tree.map(lambda leaf: leaf.reshape(n_steps, num_envs, *leaf.shape[lead:]), results)


def advantages(
    reward: jax.Array, value: jax.Array, done: jax.Array, last_value: jax.Array, gamma: Real, gae_lambda: Real
) -> jax.Array:
    """Compute advantages by generalized advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

    Args:
      reward, value, done: (n_steps, num_envs). The reward of a truncated step must include the value of the state that
        would have followed; steps beyond the end of an episode are ignored.
      last_value: (num_envs,), of the observation after the last step.
      gamma, gae_lambda: the discount of one step, and the weight of longer returns, 0 to 1.

    Returns:
      (n_steps, num_envs).
    """
    going_on = 1 - done.astype(value.dtype)
    next_value = jnp.concatenate([value[1:], last_value[None]])
    delta = reward + gamma * next_value * going_on - value

    def accumulate(following: jax.Array, step: tuple[jax.Array, Any]) -> tuple[jax.Array, jax.Array]:
        delta, decay = step
        advantage = delta + decay * following
        return advantage, advantage

    decay = gamma * gae_lambda * going_on
    zero = varying(jnp.zeros_like(last_value), delta, decay)
    return jax.lax.scan(accumulate, zero, (delta, decay), reverse=True, unroll=8)[1]


def explained_variance(rollout: Rollout, axis_name: str | None = None) -> jax.Array:
    """Return the share of the returns' variance that the values predicted; 0 if the returns do not vary.

    Never NaN, which `jax_debug_nans` would report as an error.
    """
    variance = devices.var(rollout.returns, None, axis_name)
    share = 1 - devices.var(rollout.returns - rollout.value, None, axis_name) / jnp.where(variance == 0, 1, variance)
    return jnp.where(variance == 0, 0, share)
