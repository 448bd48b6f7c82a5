"""Replay buffers of offline data: episodes, flat arrays, Minari's datasets."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from stable_baselines3.common import buffers

from bridge.replay.store import columns
from bridge.replay.store.columns import leaves, pairs
from bridge.sb3 import Space

if TYPE_CHECKING:
    from bridge.replay.data.replay_buffer import ReplayBuffer

Buffer = TypeVar("Buffer", bound="ReplayBuffer")


def from_sb3(cls: type[Buffer], buffer: buffers.ReplayBuffer) -> Buffer:
    """Return a buffer with the content of one of SB3's buffers: see ReplayBuffer.from_sb3."""
    settings = {name: getattr(buffer, name) for name in ("n_steps", "gamma") if hasattr(buffer, name)}
    made = cls(
        buffer.buffer_size * buffer.n_envs,
        buffer.observation_space,
        buffer.action_space,
        device=buffer.device,
        n_envs=buffer.n_envs,
        optimize_memory_usage=buffer.optimize_memory_usage,
        handle_timeout_termination=buffer.handle_timeout_termination,
        **settings,
    )
    # The oldest first, in pieces whose copies fit in memory.
    rows = (np.arange(buffer.size()) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    if buffer.optimize_memory_usage and buffer.full:
        rows = rows[1:]  # its observation was overwritten by the newest next observation
    for piece in np.array_split(rows, -(-len(rows) // 4096)) if len(rows) else ():
        before = columns.at(buffer.observations, piece)
        if buffer.optimize_memory_usage:
            after = columns.at(buffer.observations, (piece + 1) % buffer.buffer_size)
        else:
            after = columns.at(buffer.next_observations, piece)
        ended, timeout = buffer.dones[piece].astype(bool), buffer.timeouts[piece].astype(bool)
        # Episodes without an end, for example because the environment was reset by hand.
        left = np.zeros_like(ended)
        for now, following in pairs(before, after):
            differs = columns.differs(now[1:], following[:-1])
            left[:-1] |= differs.any(axis=tuple(range(2, differs.ndim))) & ~ended[:-1]
        made.add_rollout(before, buffer.actions[piece], buffer.rewards[piece], ended & ~timeout, timeout | left, after)
    return made


def from_episodes(
    cls: type[Buffer],
    episodes: Iterable[Any],
    observation_space: Any,
    action_space: Any,
    buffer_size: int | None,
    settings: Any,
) -> Buffer:
    """Return a buffer that holds episodes: see ReplayBuffer.from_episodes."""
    if buffer_size is None:
        episodes = list(episodes)
        buffer_size = sum(len(_field(episode, "actions")) for episode in episodes)
        if buffer_size == 0:
            raise ValueError(f"episodes must have at least one step, got {len(episodes)} episodes with none.")
    buffer = _empty(cls, buffer_size, observation_space, action_space, settings)
    for number, episode in enumerate(episodes):
        observations, actions = columns.concrete(_field(episode, "observations")), _field(episode, "actions")
        steps = len(actions)
        lengths = [len(leaf) for leaf in leaves(observations)]
        if lengths != [steps + 1] * len(lengths):
            raise ValueError(
                f"episodes[{number}] must have one observation more than actions, got {lengths[0]} observations and "
                f"{steps} actions."
            )
        if steps == 0:
            continue
        terminated, truncated = np.zeros((2, steps), bool)
        for flags, name in ((terminated, "terminations"), (truncated, "truncations")):
            given = _field(episode, name, None)
            flags[-1] = given is not None and bool(given[-1])
        truncated[-1] |= not terminated[-1]
        before, after = columns.at(observations, slice(None, -1)), columns.at(observations, slice(1, None))
        buffer.add_rollout(before, actions, _field(episode, "rewards"), terminated, truncated, after)
    return buffer


def from_arrays(
    cls: type[Buffer],
    observations: Any,
    actions: Any,
    rewards: Any,
    observation_space: Space,
    action_space: Space,
    ends: Any,
    trajectory_ids: Any,
    terminated: Any,
    next_observations: Any,
    buffer_size: int | None,
    settings: dict[str, Any],
) -> Buffer:
    """Return a buffer that holds arrays of steps: see ReplayBuffer.from_arrays."""
    steps = len(rewards)
    if (ends is None) == (trajectory_ids is None):
        raise ValueError("Pass either ends or trajectory_ids, and not both.")
    if ends is None:
        ids = _of_length("trajectory_ids", trajectory_ids, steps)
        ends = np.append(ids[1:] != ids[:-1], True)
    terminal = np.zeros(steps, bool) if terminated is None else _of_length("terminated", terminated, steps) != 0
    ended = (_of_length("ends", ends, steps) != 0) | terminal
    if steps:
        ended[-1] = True
    observations = columns.concrete(observations)
    if next_observations is None:
        following = np.arange(steps) + ~ended
        next_observations = columns.at(observations, following)
        kept = ~(ended & ~terminal)
        # The step before an omitted one ends the episode, by truncation.
        ended[:-1] |= ~kept[1:] & ~ended[:-1]
    else:
        next_observations, kept = columns.concrete(next_observations), np.ones(steps, bool)
    if not kept.any():
        raise ValueError(
            f"observations must have at least one step whose next observation is known, got {steps} steps with none."
        )
    buffer = _empty(cls, buffer_size or int(kept.sum()), observation_space, action_space, settings)
    buffer.add_rollout(
        columns.at(observations, kept),
        columns.concrete(actions)[kept],
        columns.concrete(rewards)[kept],
        terminal[kept],
        (ended & ~terminal)[kept],
        columns.at(next_observations, kept),
    )
    return buffer


def from_minari(cls: type[Buffer], dataset: Any, buffer_size: int | None, settings: dict[str, Any]) -> Buffer:
    """Return a buffer that holds a dataset of Minari: see ReplayBuffer.from_minari."""
    if isinstance(dataset, str):
        try:
            minari = importlib.import_module("minari")
        except ImportError as error:
            raise ImportError(
                f'from_minari needs minari, but {error.name} is not installed: pip install "minari[hdf5]".'
            ) from error
        dataset = minari.load_dataset(dataset)
    return cls.from_episodes(
        dataset.iterate_episodes(),
        dataset.observation_space,
        dataset.action_space,
        buffer_size=buffer_size or int(dataset.total_steps),
        **settings,
    )


def _empty(
    cls: type[Buffer], buffer_size: int, observation_space: Any, action_space: Any, settings: dict[str, Any]
) -> Buffer:
    """Return a buffer to fill.

    Raises:
      ValueError: it is in a folder that already holds transitions.
    """
    buffer = cls(buffer_size, observation_space, action_space, **settings)
    if size := buffer.size():
        buffer.close()
        raise ValueError(
            f"path must be an empty folder, got {settings.get('path')}, which holds {size} rows of transitions."
        )
    return buffer


_REQUIRED = object()


def _field(episode: Any, name: str, default: Any = _REQUIRED) -> Any:
    found = episode.get(name, default) if isinstance(episode, Mapping) else getattr(episode, name, default)
    if found is _REQUIRED:
        raise ValueError(f"Each episode must have {name}, but a {type(episode).__name__} has none.")
    return found


def _of_length(name: str, array: Any, steps: int) -> Any:
    array = columns.to_host(array).reshape(-1)
    if len(array) != steps:
        raise ValueError(f"{name} must have the length of rewards, {steps}, got {len(array)}.")
    return array
