"""ReplayBuffer and PrioritizedReplayBuffer: SB3's replay buffers in one, and what is made of what they store."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.vec_env import VecNormalize

from bridge.replay.data import offline, slices, windows
from bridge.replay.data.memmap import MemoryMapped
from bridge.replay.data.priorities import Priorities, importance_weights
from bridge.replay.data.slices import SliceSamples
from bridge.replay.data.storage import Closed, make_ring, open_ring
from bridge.replay.store import columns
from bridge.replay.store.columns import map_leaves
from bridge.replay.store.replay_buffer import RingReplayBuffer
from bridge.replay.store.ring import Ring
from bridge.replay.store.samples import PrioritizedSamples
from bridge.sb3 import Space
from jaxenvs import arguments


class ReplayBuffer(RingReplayBuffer):
    """A RingReplayBuffer whose arrays may be in files, that gives slices too, and takes offline data."""

    is_known = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """One of the class of its kind: with priorities, or of which `isinstance` says which of SB3's it stands for."""
        given = dict(zip(("buffer_size", "observation_space"), args)) | kwargs
        return super().__new__(_kind(cls, given))  # type: ignore[no-any-return]

    def __init__(
        self,
        *args: Any,
        storage: str = "ram",
        path: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """
        Args:
          args, kwargs: of RingReplayBuffer.
          storage: "ram", or "memmap" for observations, actions and rewards in files, for more than memory holds. Tags,
            four bytes a transition, are in memory.
          path: the folder of the files. What it holds of an earlier buffer is there again, as of the last `flush`.

        Raises:
          ValueError: an argument is out of its range, or the folder belongs to another buffer.
          OSError: the disk has not enough room.
        """
        self._storage, self._path = storage, path
        super().__init__(*args, **kwargs)

    def _make_ring(self) -> Ring:
        return make_ring(self._storage, self._path, self.buffer_size, self.n_envs, *self._parts())

    def why_not_lent(self) -> str | None:
        """See RingReplayBuffer."""
        return super().why_not_lent() if self._storage == "ram" else f"its storage is {self._storage!r}"

    # --- Slices ---------------------------------------------------------------------------------------------------

    def sample_slices(
        self,
        num_slices: int,
        slice_len: int,
        by: str = "window",
        strict_length: bool = True,
        replace: bool = True,
        burn_in: int = 0,
        env: VecNormalize | None = None,
    ) -> SliceSamples:
        """Draw contiguous pieces of episodes, also of those that still run, in a time that does not grow with the ring.

        Args:
          num_slices: how many.
          slice_len: of how many steps.
          by: "window": each piece of so many steps is as likely as any other. "trajectory": first an episode, of those
            that are long enough, then a piece of it.
          strict_length: False: what is stored of an episode shorter than `slice_len` is a piece too, padded at its end.
          replace: False: no piece comes twice.
          burn_in: so many steps before each piece come with it, fewer at the beginning of an episode, for models that
            have a memory to fill.
          env: normalises observations and rewards.

        Raises:
          ValueError: an argument is out of its range, or not so many pieces are stored.
        """
        arguments.positive_int("num_slices", num_slices)
        arguments.positive_int("slice_len", slice_len)
        arguments.non_negative_int("burn_in", burn_in)
        if by not in ("window", "trajectory"):
            raise ValueError(f"by must be 'window' or 'trajectory', got {by!r}.")
        ring = self._stored_ring("sample_slices")
        ring.count_ages()
        drawn, weights = self._draw_windows(ring, num_slices, slice_len, by, strict_length, replace)
        samples = slices.gather(
            ring,
            drawn,
            slice_len,
            burn_in,
            lambda taken: taken if env is None else self._normalize_obs(map_leaves(columns.to_host, taken), env),
            lambda taken: taken if env is None else self._normalize_reward(columns.to_host(taken), env),
            self.device,
        )
        return samples._replace(weights=weights)

    def _draw_windows(
        self, ring: Ring, num_slices: int, slice_len: int, by: str, strict_length: bool, replace: bool
    ) -> tuple[windows.Windows, Any]:
        """Windows, and their importance weights or None."""
        return windows.draw(ring, num_slices, slice_len, by, strict_length, replace), None

    # --- Files ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Put all that is stored on the disk, if it is in files: it is there again whatever happens to the process."""
        if self._lent is None and self._ring is not None:  # of what a program has nothing is in files
            self._ring.storage.flush(self._ring)

    def close(self) -> None:
        """Flush, and let others open the folder. Of no use afterwards; without files it does nothing."""
        if self._storage != "memmap":
            return
        storage = self.take_ring().storage
        if isinstance(storage, MemoryMapped):
            self.flush()
            storage.close()
            self._ring = Closed(storage.path)  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        # Of files their folder: they may hold more than memory.
        state = super().__getstate__()
        self.flush()
        storage = self.take_ring().storage
        if isinstance(storage, MemoryMapped):
            state["_path"], state["_ring"] = storage.path, None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__class__ = _kind(type(self), state)  # which was written before there were kinds
        if state["_ring"] is None:
            self._ring = open_ring(state["_path"]) or self._make_ring()
            self._begin()

    def _begin(self) -> None:
        """Called when the ring holds something else than before."""

    def _moved(self) -> None:
        self._begin()

    def reset(self) -> None:
        """Forget all that is stored."""
        super().reset()
        self._begin()

    # --- Data that was collected before -----------------------------------------------------------------------------
    #
    # In one lane, in which episodes lie end to end, however long each is. Actions are stored as they are given: SB3's
    # SAC, TD3 and DDPG act in [-1, 1] and want those of a Box scaled to that, as their `policy.scale_action` does.

    @classmethod
    def from_sb3(cls, buffer: buffers.ReplayBuffer) -> Self:
        """A buffer that holds what one of SB3's holds.

        Args:
          buffer: a ReplayBuffer, a DictReplayBuffer or an NStepReplayBuffer.
        """
        return offline.from_sb3(cls, buffer)

    @classmethod
    def from_episodes(
        cls,
        episodes: Iterable[Any],
        observation_space: Space,
        action_space: Space,
        buffer_size: int | None = None,
        **settings: Any,
    ) -> Self:
        """A buffer that holds episodes.

        Args:
          episodes: of each `observations`, one more than `actions`, `rewards`, and, if there are any, `terminations`
            and `truncations`: attributes, as of Minari's EpisodeData, or keys. One whose last step is not terminal was
            truncated.
          buffer_size: the transitions of all together unless told. Without it all episodes are in memory meanwhile.
          **settings: as of the constructor.

        Raises:
          ValueError: an episode has arrays that do not belong together, or there is no episode.
        """
        return offline.from_episodes(cls, episodes, observation_space, action_space, buffer_size, settings)

    @classmethod
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        rewards: Any,
        observation_space: Space,
        action_space: Space,
        ends: Any = None,
        trajectory_ids: Any = None,
        terminated: Any = None,
        next_observations: Any = None,
        buffer_size: int | None = None,
        **settings: Any,
    ) -> Self:
        """A buffer that holds arrays of steps, episode after episode.

        Args:
          observations, actions, rewards: with the leading axis num_steps.
          ends: (num_steps,), bools, where an episode ends. The last step always ends one.
          trajectory_ids: (num_steps,), in place of `ends`: an episode ends where the next step has another id.
          terminated: (num_steps,), bools, where the state that a step leads to is terminal, which ends an episode too.
          next_observations: with the leading axis num_steps, what each step leads to. Without them, the last
            observation of an episode that does not end in a terminal state is what the step before leads to, and no
            step of its own, as it is usual with D4RL's data. What a terminal step leads to is then not known: its own
            observation stands for it.
          buffer_size: the number of steps unless told.
          **settings: as of the constructor.

        Raises:
          ValueError: arrays do not belong together, or both `ends` and `trajectory_ids` are given, or neither.
        """
        return offline.from_arrays(
            cls,
            observations,
            actions,
            rewards,
            observation_space,
            action_space,
            ends,
            trajectory_ids,
            terminated,
            next_observations,
            buffer_size,
            settings,
        )

    @classmethod
    def from_minari(cls, dataset: Any, buffer_size: int | None = None, **settings: Any) -> Self:
        """A buffer that holds a dataset of Minari's, episode by episode.

        Args:
          dataset: a MinariDataset, or the name of one that is on this machine.
          buffer_size: the dataset's number of steps unless told.
          **settings: as of the constructor.

        Raises:
          ImportError: `dataset` is a name, and Minari is not installed.
        """
        return offline.from_minari(cls, dataset, buffer_size, settings)


class DictReplayBuffer(ReplayBuffer, buffers.DictReplayBuffer):
    """A ReplayBuffer of Dict observations, which is one of SB3's DictReplayBuffer for whoever asks."""

    is_known = True


class NStepReplayBuffer(ReplayBuffer, getattr(buffers, "NStepReplayBuffer", buffers.ReplayBuffer)):  # type: ignore[misc]
    """A ReplayBuffer of returns of several steps, which is one of SB3's NStepReplayBuffer for whoever asks."""

    is_known = True


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ReplayBuffer that draws in proportion to priorities (Schaul et al. 2016, https://arxiv.org/abs/1511.05952).

    bridge.DQN, SAC, TD3 and DDPG weigh what it draws, and set priorities to the errors that they find. It may be in
    files; priorities are in memory.
    """

    is_known = True

    def __init__(self, *args: Any, alpha: float = 0.6, beta: float = 0.4, **kwargs: Any) -> None:
        """
        Args:
          args, kwargs: of ReplayBuffer.
          alpha: samples are drawn in proportion to their priorities to this power, which new transitions have the
            greatest of and `update_priorities` sets.
          beta: the exponent of importance weights, an attribute that may be changed as training goes on.
        """
        if not alpha >= 0:
            raise ValueError(f"alpha must be at least 0, got {alpha!r}.")
        self.alpha, self.beta = alpha, beta
        super().__init__(*args, **kwargs)
        self._begin()

    def _begin(self) -> None:
        self.priorities = Priorities(self.take_ring(), self.alpha)

    def _written(self, rows: int) -> None:
        self.priorities.mark_written(self.take_ring(), rows)

    def why_not_lent(self) -> str | None:
        """See RingReplayBuffer."""
        return "it has priorities"

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw transitions in proportion to their priorities, with replacement.

        Args:
          env: normalises observations and rewards.

        Returns:
          PrioritizedSamples: SB3's with `weights` and `indices`.

        Raises:
          ValueError: nothing is stored, or all priorities are 0.
        """
        self._stored_ring("sample")
        slots, likely = self.priorities.draw(batch_size)
        found = self._transitions(slots, env)._asdict()
        weights = self._tensor(importance_weights(likely, self.beta))
        return PrioritizedSamples(**found, weights=weights, indices=self._tensor(slots))

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Set the priorities of transitions, such as the sizes of their temporal-difference errors.

        Args:
          indices: those of samples. What was overwritten since then is another transition by now. Passed over are -1,
            where a slice has no step, and what is stored no more, as after a `reset`.
          priorities: as many, 0 or more.

        Raises:
          ValueError: a priority or an index is out of its range. Nothing changed.
        """
        new = columns.to_host(priorities).astype(np.float64)
        self.priorities.update(self.take_ring(), columns.to_host(indices), new)

    def _draw_windows(
        self, ring: Ring, num_slices: int, slice_len: int, by: str, strict_length: bool, replace: bool
    ) -> tuple[windows.Windows, Any]:
        """In proportion to the priorities of their steps, added up."""
        if by != "window" or not strict_length:
            raise ValueError("With priorities, sample_slices needs by='window' and strict_length=True.")
        drawn, likely = self.priorities.draw_windows(ring, num_slices, slice_len, replace)
        return drawn, self._tensor(importance_weights(likely, self.beta))


def _kind(cls: type[Any], given: dict[str, Any]) -> type[Any]:
    """The class of a buffer with these settings, where a ReplayBuffer is asked for; else that asked for."""
    if cls is not ReplayBuffer:
        return cls
    if given.get("alpha") is not None:
        return PrioritizedReplayBuffer
    if given.get("n_steps", 1) > 1:
        return NStepReplayBuffer
    return DictReplayBuffer if isinstance(given.get("observation_space"), spaces.Dict) else ReplayBuffer
