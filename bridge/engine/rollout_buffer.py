"""Write compiled rollouts into SB3's rollout buffers, and read them for compiled updates."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from bridge.engine.lstm_state import Memory
from bridge.translate.policies.exported_network import export_encoding, from_host
from jaxenvs.learn import Masked, Recalled, Rollout
from jaxenvs.learn.interfaces import unmasked

# The arrays of sb3-contrib's recurrent buffers with the states of actor and critic, (n_steps, layers, n_envs, size).
STATES = {name: (f"hidden_states_{name}", f"cell_states_{name}") for name in ("pi", "vf")}


def write_rollout(buffer: Any, rollout: Rollout, first_starts: np.ndarray, dones: np.ndarray) -> None:
    """Write a rollout into SB3's buffer, as if it had been added step by step.

    Args:
      rollout: NumPy arrays; they are copied.
      first_starts: whether an episode began with the first step, (num_envs,).
      dones: whether an episode ended with each step, (n_steps, num_envs).

    Raises:
      ValueError: the buffer has another size. Nothing has changed.
    """
    lead = dones.shape
    if lead != (buffer.buffer_size, buffer.n_envs):
        raise ValueError(
            f"The rollout must have {buffer.buffer_size} steps of {buffer.n_envs} environments, as the rollout "
            f"buffer, got {lead[0]} steps of {lead[1]}."
        )
    observation, mask = unmasked(rollout.observation)  # of the kind that the buffer expects
    if hasattr(buffer, "action_masks"):
        buffer.action_masks = np.ones((*lead, buffer.mask_dims), np.float32)
    if mask is not None:
        buffer.action_masks[:] = mask
    if isinstance(observation, Recalled):
        for name, arrays in STATES.items():
            for array, part in zip(arrays, observation.memory[name]):
                setattr(buffer, array, np.array(part.swapaxes(1, 2), np.float32, order="C"))
        observation = observation.observation
    if isinstance(buffer, DictRolloutBuffer):
        buffer.observations = {
            name: np.array(leaf, buffer.observation_space[name].dtype).reshape(*lead, *buffer.obs_shape[name])
            for name, leaf in observation.items()
        }
    else:
        dtype = buffer.observation_space.dtype
        buffer.observations = np.array(observation, dtype).reshape(*lead, *buffer.obs_shape)
    buffer.actions = np.array(rollout.action, buffer.action_space.dtype).reshape(*lead, buffer.action_dim)
    buffer.episode_starts = np.concatenate([np.asarray(first_starts)[None], dones[:-1]]).astype(np.float32)
    buffer.rewards, buffer.values, buffer.log_probs, buffer.advantages, buffer.returns = (
        np.array(leaf) for leaf in (rollout.reward, rollout.value, rollout.log_prob, rollout.advantage, rollout.returns)
    )
    buffer.pos, buffer.full, buffer.generator_ready = lead[0], True, False


def write_memory(buffer: object, step: int, memory: Memory) -> None:
    """Write a recurrent state before a step, (num_envs, layers, size), into sb3-contrib's buffer."""
    for name, arrays in STATES.items():
        for array, part in zip(arrays, memory[name]):
            getattr(buffer, array)[step] = part.swapaxes(0, 1)


def read_rollout(buffer: RolloutBuffer) -> Rollout:
    """Return what SB3's buffer holds, with leading axes (n_steps, num_envs), even if SB3 has flattened it already.

    Raises:
      RuntimeError: a Discrete or MultiDiscrete observation is out of range, as in SB3.
    """

    def field(array: np.ndarray) -> Any:
        if not buffer.generator_ready:
            return array
        return array.reshape(buffer.n_envs, buffer.buffer_size, *array.shape[1:]).swapaxes(0, 1)

    def scalar(array: np.ndarray) -> Any:
        return field(array).reshape(buffer.buffer_size, buffer.n_envs)

    def state(name: str) -> Any:
        array = getattr(buffer, name)
        return field(array) if buffer.generator_ready else array.swapaxes(1, 2)

    # The oldest supported versions of SB3 keep all actions as float32.
    actions = field(buffer.actions).astype(buffer.action_space.dtype, copy=False)
    rewards: Any = buffer.rewards  # the only array that SB3 does not flatten
    encoding = export_encoding(buffer.observation_space, normalize_images=False)
    observation = from_host(encoding, jax.tree.map(field, buffer.observations))
    if hasattr(buffer, "action_masks"):
        observation = Masked(observation, field(buffer.action_masks))
    if hasattr(buffer, "hidden_states_pi"):
        memory = {name: tuple(map(state, arrays)) for name, arrays in STATES.items()}
        observation = Recalled(observation, memory, scalar(buffer.episode_starts) != 0)
    return Rollout(
        observation=observation,
        action=actions[..., 0] if isinstance(buffer.action_space, spaces.Discrete) else actions,
        log_prob=scalar(buffer.log_probs),
        value=scalar(buffer.values),
        reward=rewards,
        advantage=scalar(buffer.advantages),
        returns=scalar(buffer.returns),
    )
