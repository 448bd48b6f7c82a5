"""Slices: windows of a ring as tensors, with the steps before them.

A row of the tensors is one slice. Column `burn_in` is the first slot of its window, and columns before it are the
steps that came before in the same episode, which a recurrent policy reads to rebuild its state:

    burn_in = 2, slice_len = 4        column    0    1    2    3    4    5
    the episode began one step before           -    s0   s1   s2   s3   s4     mask: False in column 0
    a window of 3 slots                         s5   s6   s7   s8   s9   -      mask: False in column 5
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from bridge.replay.data import windows
from bridge.replay.store import columns, transitions
from bridge.replay.store.columns import leaves, map_leaves, pairs
from bridge.replay.store.ring import Ring
from jaxenvs.learn.off_policy.store import replay_tags


class SliceSamples(NamedTuple):
    """Slices of episodes: tensors with the leading axes (num_slices, burn_in + slice_len).

    Attributes:
      observations, actions, rewards: zeros where `mask` is False.
      next_observations: the observation after each step, before any reset.
      terminated, truncated: whether and how the episode ended at the step. An episode without an end, because the
        environment was reset by hand, counts as truncated.
      mask: True where there is a step. It is False before the beginning of an episode, which only `burn_in` asks for,
        and after the end of an episode that is too short, which needs `strict_length=False`.
      episode_steps: int64, the steps since the episode began; 0 for the last step of an episode if no other is stored.
      indices: int64, the slots, for `update_priorities`; -1 where `mask` is False, which `update_priorities` ignores.
      weights: (num_slices, 1), importance weights; None without priorities.
    """

    observations: Any
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: Any
    terminated: torch.Tensor
    truncated: torch.Tensor
    mask: torch.Tensor
    episode_steps: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor | None = None


def gather(
    ring: Ring,
    drawn: windows.Windows,
    slice_len: int,
    burn_in: int,
    normalize_observation: Callable[[Any], Any],
    normalize_reward: Callable[[Any], Any],
    device: torch.device,
) -> SliceSamples:
    """Return the steps in windows of at most `slice_len` slots as SliceSamples."""
    last, size = drawn
    first = (last - (size - 1) * ring.num_envs) % ring.num_slots
    before = np.minimum(windows.ages(ring, first), burn_in) if burn_in else np.zeros_like(size)
    column = np.arange(-burn_in, slice_len)
    # A column without a step repeats an existing one, and is set to zero at the end.
    step = np.clip(column, -before[:, None], size[:, None] - 1)
    mask = step == column
    slots = (first[:, None] + step * ring.num_envs) % ring.num_slots

    observation = transitions.observations(ring, slots)
    final = transitions.next_observations(ring, last, transitions.tags(ring, last))
    following = map_leaves(_following, observation)
    for leaf, values in pairs(following, final):
        columns.write(leaf, (np.arange(len(last)), burn_in + size - 1), values)
    tag = transitions.tags(ring, slots)
    reward = normalize_reward(columns.take(ring.reward, slots))
    fields = {
        "observations": normalize_observation(observation),
        "actions": columns.take(ring.action, slots),
        "rewards": reward,
        "next_observations": normalize_observation(following),
        "terminated": replay_tags.terminated(tag),
        "truncated": replay_tags.truncated(tag),
        "episode_steps": windows.episode_steps(ring, slots).astype(np.int64),
        "indices": slots,
    }
    if not mask.all():
        absent = ~mask
        for name, field in fields.items():
            for leaf in leaves(field):
                columns.write(leaf, absent, -1 if name == "indices" else 0)
    tensors = {name: map_leaves(lambda leaf: columns.to_tensor(leaf, device), field) for name, field in fields.items()}
    return SliceSamples(mask=columns.to_tensor(mask, device), **tensors)


def _following(observation: Any) -> Any:
    """Return the observations of the next column; the last column is undefined."""
    shifted = np.empty_like(observation)
    shifted[:, :-1] = observation[:, 1:]
    return shifted
