"""OfflineData: constructors of replay buffers from data that was collected before."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from stable_baselines3.common import buffers

from bridge.replay import columns
from bridge.replay.columns import as_numpy, map_leaves, shaped
from bridge.replay.rows import Rows
from bridge.sb3 import Space


class OfflineData(Rows):
    """Replay buffer that can be made from a data set.

    Episodes of any length lie end to end, in a single environment. Actions are stored as they are given: SB3's SAC, TD3
    and DDPG act in [-1, 1], and need Box actions scaled to that, as by `policy.scale_action`.
    """

    @classmethod
    def from_sb3(cls, buffer: buffers.ReplayBuffer) -> Self:
        """Return a buffer with the content of one of SB3's buffers.

        Args:
          buffer: a ReplayBuffer, a DictReplayBuffer or an NStepReplayBuffer.
        """
        return cls.taking(copy.deepcopy(buffer))

    @classmethod
    def taking(cls, buffer: buffers.ReplayBuffer) -> Self:
        """Return a buffer with the arrays of one of SB3's, which are not copied."""
        names = ("observation_space", "action_space", "n_envs", "device", "optimize_memory_usage", "n_steps",
                 "handle_timeout_termination")  # fmt: skip
        made = cls(buffer.n_envs, **{name: getattr(buffer, name) for name in names if hasattr(buffer, name)})
        vars(made).update(vars(buffer))
        made.num_added()
        made._forget()  # what the constructor has computed from its own rows
        return made

    @classmethod
    def from_episodes(
        cls,
        episodes: Iterable[object],
        observation_space: Space,
        action_space: Space,
        buffer_size: int | None = None,
        **settings: object,
    ) -> Self:
        """Return a buffer that holds the given episodes.

        Args:
          episodes: each with `observations` (one more than `actions`), `actions`, `rewards`, and optionally
            `terminations` and `truncations`: as attributes, like Minari's EpisodeData, or as keys. An episode whose
            last step is not terminal counts as truncated.
          observation_space, action_space: of the environment.
          buffer_size: the capacity, by default the transitions of all episodes, which are all in memory meanwhile.
          **settings: further arguments of the constructor.

        Raises:
          ValueError: arrays of an episode do not belong together, or there is no episode.
        """
        if buffer_size is None:
            episodes = list(episodes)
            buffer_size = sum(len(_field(episode, "actions")) for episode in episodes)
            if buffer_size == 0:
                raise ValueError(f"episodes must have at least one step, got {len(episodes)} episodes with none.")
        buffer = cls._empty(buffer_size, observation_space, action_space, settings)
        for number, episode in enumerate(episodes):
            observations, actions = map_leaves(as_numpy, _field(episode, "observations")), _field(episode, "actions")
            steps = len(actions)
            lengths = [len(leaf) for leaf in columns.leaves(observations)]
            if wrong := [length for length in lengths if length != steps + 1]:
                raise ValueError(
                    f"episodes[{number}] must have one observation more than actions, got {wrong[0]} observations "
                    f"and {steps} actions."
                )
            if steps == 0:
                continue
            terminated, truncated = np.zeros((2, steps), bool)
            for flags, name in ((terminated, "terminations"), (truncated, "truncations")):
                if (given := _field(episode, name, is_required=False)) is not None:
                    flags[-1] = bool(_of_length(f"{name} of episodes[{number}]", given, steps)[-1])
            truncated[-1] |= not terminated[-1]
            before, after = columns.at(observations, slice(None, -1)), columns.at(observations, slice(1, None))
            rewards = _of_length(f"rewards of episodes[{number}]", _field(episode, "rewards"), steps)
            buffer.add_rollout(before, actions, rewards, terminated, truncated, after)
        return buffer

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: ArrayLike,
        rewards: ArrayLike,
        observation_space: Space,
        action_space: Space,
        ends: ArrayLike | None = None,
        trajectory_ids: Any = None,
        terminated: ArrayLike | None = None,
        next_observations: Any = None,
        buffer_size: int | None = None,
        **settings: object,
    ) -> Self:
        """Return a buffer that holds arrays of steps, episode after episode.

        Args:
          observations, actions, rewards: with the leading axis num_steps.
          observation_space, action_space: of the environment.
          ends: (num_steps,), bools, True where an episode ends. The last step always ends one.
          trajectory_ids: (num_steps,), instead of `ends`: an episode ends where the next step has another id.
          terminated: (num_steps,), bools, True where the state after a step is terminal, which ends an episode too.
          next_observations: with the leading axis num_steps, the observation after each step. Without them, the last
            observation of an episode that does not end in a terminal state is only the next observation of the step
            before, as is usual in D4RL's data. The observation after a terminal step is then unknown, and replaced by
            the step's own.
          buffer_size: the capacity, by default the number of steps.
          **settings: further arguments of the constructor.

        Raises:
          ValueError: arrays do not belong together, or not exactly one of `ends` and `trajectory_ids` is given.
        """
        steps = len(np.atleast_1d(as_numpy(rewards)))
        rewards, actions = _of_length("rewards", rewards, steps), _of_length("actions", actions, steps)
        if (ends is None) == (trajectory_ids is None):
            raise ValueError("Pass either ends or trajectory_ids, and not both.")
        if ends is None:
            ids = shaped("trajectory_ids", trajectory_ids, (steps,))
            ends = np.append(ids[1:] != ids[:-1], True)
        terminal = np.zeros(steps, bool) if terminated is None else shaped("terminated", terminated, (steps,)) != 0
        ended = (shaped("ends", ends, (steps,)) != 0) | terminal
        if steps:
            ended[-1] = True
        observations = map_leaves(lambda leaf: _of_length("observations", leaf, steps), observations)
        if final_only := next_observations is None:
            following = np.arange(steps) + ~ended
            next_observations = columns.at(observations, following)
            kept = ~(ended & ~terminal)
            # The step before an omitted one ends the episode, by truncation.
            ended[:-1] |= ~kept[1:] & ~ended[:-1]
        else:
            next_observations = map_leaves(lambda leaf: _of_length("next_observations", leaf, steps), next_observations)
            kept = np.ones(steps, bool)
        if not kept.any():
            raise ValueError(
                f"observations must have at least one step whose next observation is known, got {steps} steps "
                "with none."
            )
        buffer = cls._empty(buffer_size or int(kept.sum()), observation_space, action_space, settings)
        buffer.add_rollout(
            columns.at(observations, kept),
            actions[kept],
            rewards[kept],
            terminal[kept],
            (ended & ~terminal)[kept],
            columns.at(next_observations, kept),
            final_only,
        )
        return buffer

    @classmethod
    def from_minari(cls, dataset: Any, buffer_size: int | None = None, **settings: object) -> Self:
        """Return a buffer that holds a dataset of Minari, episode by episode.

        Args:
          dataset: a MinariDataset, or the name of one on this machine.
          buffer_size: the capacity, by default the dataset's number of steps.
          **settings: further arguments of the constructor.

        Raises:
          ImportError: `dataset` is a name, and Minari is not installed.
        """
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

    @classmethod
    def _empty(cls, buffer_size: int, observation_space: Space, action_space: Space, settings: dict[str, Any]) -> Self:
        """Return a buffer to fill.

        Raises:
          ValueError: it is in a folder that already holds transitions.
        """
        buffer = cls(buffer_size, observation_space, action_space, **settings)
        if size := buffer.size():
            buffer._files.unlock()
            raise ValueError(
                f"path must be an empty folder, got {settings.get('path')}, which holds {size} rows of transitions."
            )
        return buffer


def _of_length(name: str, value: ArrayLike, steps: int) -> np.ndarray:
    array = as_numpy(value)
    if array.shape[:1] != (steps,):
        raise ValueError(f"{name} must have the leading axis {steps}, as the others, got the shape {array.shape}.")
    return array


def _field(episode: object, name: str, is_required: bool = True) -> Any:
    found = episode.get(name) if isinstance(episode, Mapping) else getattr(episode, name, None)
    if found is None and is_required:
        raise ValueError(f"Each episode must have {name}, but a {type(episode).__name__} has none.")
    return found
