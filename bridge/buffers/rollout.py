"""SB3's rollout buffers, filled and read by programs."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from jaxenvs.learn import Masked, Rollout


def write_rollout(buffer: Any, rollout: Rollout, first_starts: Any, dones: np.ndarray) -> None:
    """Put a rollout into SB3's buffer, as if it had been added step by step.

    Args:
      rollout: NumPy arrays; they are copied.
      first_starts: (num_envs,), whether an episode began with the first step.
      dones: (n_steps, num_envs).

    Raises:
      ValueError: the buffer is of another size. Nothing changed.
    """
    lead = dones.shape
    if lead != (buffer.buffer_size, buffer.n_envs):
        raise ValueError(
            f"The rollout is {lead[0]} steps of {lead[1]} environments, the buffer holds "
            f"{buffer.buffer_size} of {buffer.n_envs}."
        )
    observation = rollout.observation
    if hasattr(buffer, "action_masks"):
        buffer.action_masks = np.ones((*lead, buffer.mask_dims), np.float32)
    if isinstance(observation, Masked):
        buffer.action_masks[:] = observation.action_mask
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


def read_rollout(buffer: RolloutBuffer) -> Rollout:
    """What SB3's buffer holds, with two leading axes. If SB3 has flattened it already, the first is all of it."""

    def field(array: Any) -> Any:
        return array[:, None] if buffer.generator_ready else array

    def scalar(array: Any) -> Any:
        return array if not buffer.generator_ready else array.reshape(-1, 1)

    # The first versions of SB3 that we support keep all actions as float32.
    actions = field(buffer.actions).astype(buffer.action_space.dtype, copy=False)
    observation = jax.tree.map(field, buffer.observations)
    if hasattr(buffer, "action_masks"):
        observation = Masked(observation, field(buffer.action_masks))
    return Rollout(
        observation=observation,
        action=actions[..., 0] if isinstance(buffer.action_space, spaces.Discrete) else actions,
        log_prob=scalar(buffer.log_probs),
        value=scalar(buffer.values),
        # The one array that SB3 does not flatten.
        reward=scalar(buffer.rewards.swapaxes(0, 1) if buffer.generator_ready else buffer.rewards),
        advantage=scalar(buffer.advantages),
        returns=scalar(buffer.returns),
    )
