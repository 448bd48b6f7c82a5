"""Slices: windows of a ring as tensors, with the steps before them.

A row of the tensors is one slice. Column `burn_in` is the first slot of its window, and columns before it are the
steps that came before in the same episode, which a recurrent policy reads to rebuild its state:

    burn_in = 2, slice_len = 4        column    0    1    2    3    4    5
    the episode began one step before           -    s0   s1   s2   s3   s4     mask: False in column 0
    a window of 3 slots                         s5   s6   s7   s8   s9   -      mask: False in column 5
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize

from bridge.replay import columns
from bridge.replay.columns import leaves, map_leaves
from bridge.replay.episode_index import Episodes
from bridge.replay.windows import Windows


class SliceSamples(NamedTuple):
    """Slices of episodes: tensors with the leading axes (num_slices, burn_in + slice_len).

    Attributes:
      observations, actions, rewards: zeros where `mask` is False.
      next_observations: the observation after each step, before any reset.
      terminated, truncated: whether and how the episode ended at the step. An episode without an end, because the
        environment was reset by hand, counts as truncated.
      mask: True where there is a step. It is False before the beginning of an episode, which only `burn_in` asks for,
        and after the end of an episode that is too short, which needs `strict_length=False`.
      episode_steps: int64, the steps since the episode began; or since the oldest row that was stored when slices were
        first drawn, if it began before.
      indices: int64, the slots, for `update_priorities`; -1 where `mask` is False, which `update_priorities` ignores.
      weights: (num_slices, 1), importance weights; None without priorities.
    """

    observations: torch.Tensor | TensorDict
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: torch.Tensor | TensorDict
    terminated: torch.Tensor
    truncated: torch.Tensor
    mask: torch.Tensor
    episode_steps: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor | None = None


def gather(
    rows: Any,
    episodes: Episodes,
    drawn: Windows,
    slice_len: int,
    burn_in: int,
    env: VecNormalize | None,
    weights: torch.Tensor | None,
) -> SliceSamples:
    """Return the steps in windows of at most `slice_len` slots of a ReplayBuffer as SliceSamples.

    Args:
      env: normalizes observations and rewards.
    """
    last, size = drawn
    first = (last - (size - 1) * rows.n_envs) % episodes.num_slots
    before = np.minimum(episodes.ages(first), burn_in) if burn_in else np.zeros_like(size)
    column = np.arange(-burn_in, slice_len)
    # A column without a step repeats an existing one, and is set to zero at the end.
    step = np.clip(column, -before[:, None], size[:, None] - 1)
    mask = step == column
    slots = (first[:, None] + step * rows.n_envs) % episodes.num_slots

    observation = map_leaves(lambda leaf: columns.take(leaf, slots), rows.observations)
    done, timeout = columns.take(rows.dones, slots) != 0, columns.take(rows.timeouts, slots) != 0
    terminated = done & ~timeout
    fields = {
        "observations": rows._normalize_obs(observation, env),
        "actions": columns.take(rows.actions, slots),
        "rewards": rows._normalize_reward(columns.take(rows.rewards, slots), env),
        "next_observations": rows._normalize_obs(rows._next_observations(slots), env),
        "terminated": terminated,
        "truncated": timeout | (episodes.is_last(slots) & ~terminated),
        "episode_steps": columns.take(episodes.steps, slots).astype(np.int64),
        "indices": slots,
    }
    if not mask.all():
        absent = ~mask
        for name, field in fields.items():
            for leaf in leaves(field):
                leaf[absent] = -1 if name == "indices" else 0
    tensors = {name: map_leaves(rows._tensor, field) for name, field in fields.items()}
    return SliceSamples(mask=rows._tensor(mask), weights=weights, **tensors)
