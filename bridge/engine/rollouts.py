"""Rollouts and updates as programs, and between them SB3's rollout buffer."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from bridge.vec_env.packing import Packed, Packing
from bridge.vec_env.programs import Outputs, outputs_of
from jaxenvs import struct
from jaxenvs.compilation import compiler_options
from jaxenvs.learn import LearnerState, Normalizer, OnPolicy, Position, Rollout, collect


@struct
class Steps:
    """What the host needs of a rollout besides the Rollout. Leading axes (n_steps, num_envs).

    Attributes:
      outputs: as a step of a JaxVecEnv gives them; without the observations.
      rewards, raw_rewards: after and before normalisation.
      dones: bool.
      final_observation: as the policy sees it; None where that is as the environments give it.
      last_observation, raw_observation: after the last step, (num_envs, ...): for the policy, and as it was given.
    """

    outputs: Outputs
    rewards: Any
    raw_rewards: Any
    dones: Any
    final_observation: Any
    last_observation: Any
    raw_observation: Any


def _collect(
    packing: Packing,
    changes_observations: bool,
    learner: OnPolicy,
    params: jax.Array,
    packed_state: Packed,
    observation: Any,
    normalizer: Normalizer | None,
    key_data: jax.Array,
) -> Any:
    key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
    start = Position(packing.unpack(packed_state), observation, normalizer)
    position, rollout, seen, raw = collect(learner, params, start, draw)
    network: Any = learner.network
    steps = Steps(
        outputs=outputs_of(raw)._replace(observation=()),
        rewards=seen.reward.astype(jnp.float32),
        raw_rewards=raw.reward.astype(jnp.float32),
        dones=raw.done,
        final_observation=network.as_seen(seen.final_observation) if changes_observations else None,
        last_observation=network.as_seen(position.observation),
        raw_observation=jax.tree.map(lambda leaf: leaf[-1], raw.observation),
    )
    rollout = dataclasses.replace(rollout, observation=network.as_seen(rollout.observation))
    return packing.pack(position.env_state), jax.random.key_data(key), position.normalizer, rollout, steps


def _update(learner: OnPolicy, state: LearnerState, rollout: Rollout, key_data: jax.Array) -> Any:
    key, draw = jax.random.split(jax.random.wrap_key_data(key_data))
    state, metrics = learner.update(state, rollout, draw)
    return state, jax.random.key_data(key), metrics


# From so many rows of a minibatch times parameters, an update takes up to a fifth less time if XLA runs kernels side by
# side; with fewer it takes up to a fifth more (multilayer perceptrons from 64 to 400 wide, on two cores).
LARGE_UPDATE = 8_000_000


@functools.cache
def programs() -> Any:
    """Jitted once for the process: JAX keeps a program for each structure, so models of one shape share theirs."""
    return SimpleNamespace(
        collect=jax.jit(_collect, static_argnums=(0, 1), compiler_options=compiler_options()),
        update=jax.jit(_update, compiler_options=compiler_options()),
        large_update=jax.jit(_update, compiler_options=compiler_options(in_order=False)),
    )


def to_host(tree: Any) -> Any:
    """What a program gave as NumPy arrays, which are not for writing; on a CPU they are JAX's own memory."""
    if jax.default_backend() != "cpu":
        return jax.device_get(tree)
    # device_get first starts to copy each array, and that takes longer than all the rest.
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [np.asarray(leaf) for leaf in leaves])


def fill(buffer: RolloutBuffer, rollout: Rollout, first_starts: Any, dones: np.ndarray) -> None:
    """Put a rollout into SB3's buffer, as if it had been added step by step."""
    n_steps, num_envs = dones.shape
    if (n_steps, num_envs) != (buffer.buffer_size, buffer.n_envs):
        raise ValueError(
            f"The rollout is {n_steps} steps of {num_envs} environments, the buffer holds "
            f"{buffer.buffer_size} of {buffer.n_envs}."
        )
    lead = (n_steps, num_envs)
    if isinstance(buffer, DictRolloutBuffer):
        buffer.observations = {
            name: np.array(leaf, buffer.observation_space[name].dtype).reshape(*lead, *buffer.obs_shape[name])
            for name, leaf in rollout.observation.items()
        }
    else:
        dtype = buffer.observation_space.dtype
        buffer.observations = np.array(rollout.observation, dtype).reshape(*lead, *buffer.obs_shape)
    buffer.actions = np.array(rollout.action, buffer.action_space.dtype).reshape(*lead, buffer.action_dim)
    buffer.episode_starts = np.concatenate([np.asarray(first_starts)[None], dones[:-1]]).astype(np.float32)
    buffer.rewards, buffer.values, buffer.log_probs, buffer.advantages, buffer.returns = (
        np.array(leaf) for leaf in (rollout.reward, rollout.value, rollout.log_prob, rollout.advantage, rollout.returns)
    )
    buffer.pos, buffer.full, buffer.generator_ready = n_steps, True, False


def rollout_in(buffer: RolloutBuffer) -> Rollout:
    """What SB3's buffer holds, with two leading axes. If SB3 has flattened it already, the first is all of it."""

    def field(array: Any) -> Any:
        return array[:, None] if buffer.generator_ready else array

    def scalar(array: Any) -> Any:
        return array if not buffer.generator_ready else array.reshape(-1, 1)

    # The first versions of SB3 that we support keep all actions as float32.
    actions = field(buffer.actions).astype(buffer.action_space.dtype, copy=False)
    return Rollout(
        observation=jax.tree.map(field, buffer.observations),
        action=actions[..., 0] if isinstance(buffer.action_space, spaces.Discrete) else actions,
        log_prob=scalar(buffer.log_probs),
        value=scalar(buffer.values),
        # The one array that SB3 does not flatten.
        reward=scalar(buffer.rewards.swapaxes(0, 1) if buffer.generator_ready else buffer.rewards),
        advantage=scalar(buffer.advantages),
        returns=scalar(buffer.returns),
    )


def row_of(tree: Any, step: int) -> Any:
    """One step of stacked observations."""
    return tree[step] if isinstance(tree, np.ndarray) else jax.tree.map(lambda leaf: leaf[step], tree)
