"""ReplayBuffer and PrioritizedReplayBuffer: SB3's replay buffers in one, with slices, files and offline data."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.vec_env import VecNormalize

from bridge.replay.data import slices, windows
from bridge.replay.data.memmap import MemoryMapped
from bridge.replay.data.offline import OfflineData
from bridge.replay.data.priorities import Priorities, importance_weights
from bridge.replay.data.slices import SliceSamples
from bridge.replay.data.storage import Closed, make_ring, open_ring
from bridge.replay.store import columns
from bridge.replay.store.ring import Ring
from bridge.replay.store.samples import PrioritizedSamples
from jaxenvs import arguments


class ReplayBuffer(OfflineData):
    """Replay buffer in place of SB3's ReplayBuffer, DictReplayBuffer and NStepReplayBuffer.

    It stores each observation once, and samples the transitions that SB3's buffers sample from the same seed. bridge's
    off-policy algorithms use it by default. Choose it explicitly to keep data in files, to sample slices of episodes
    for sequence models, or to load offline data (`from_episodes`, `from_arrays`, `from_minari`, `from_sb3`).
    """

    is_known = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an instance of the subclass that fits the arguments.

        With `alpha` it is a PrioritizedReplayBuffer; with `n_steps` above 1 or Dict observations, a subclass of SB3's
        class for them too, so that `isinstance` finds it.
        """
        given = dict(zip(("buffer_size", "observation_space"), args)) | kwargs
        return super().__new__(_kind(cls, given))  # type: ignore[no-any-return]

    def __init__(
        self,
        *args: Any,
        storage: str = "ram",
        path: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Allocate the arrays, or open the files.

        Args:
          args, kwargs: the arguments of RingReplayBuffer: SB3's, `n_steps` and `gamma`.
          storage: "ram", or "memmap" for observations, actions and rewards in files, if they need more than memory.
            Tags, four bytes a transition, stay in memory.
          path: the folder of the files. If it holds a previous buffer's files, their content is restored, as of the
            last `flush`.

        Raises:
          ValueError: an argument is out of its range, or the folder belongs to another buffer.
          OSError: the disk is full.
        """
        self._storage, self._path = storage, path
        super().__init__(*args, **kwargs)

    def _make_ring(self) -> Ring:
        return make_ring(self._storage, self._path, self.buffer_size, self.n_envs, *self._parts())

    def why_not_on_device(self) -> str | None:
        """Return why the data cannot move to the device for compiled functions; None if it can."""
        return super().why_not_on_device() if self._storage == "ram" else f"its storage is {self._storage!r}"

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
        """Sample contiguous pieces of episodes, including running ones, in a time independent of the buffer's size.

        Args:
          num_slices: the number of pieces.
          slice_len: the number of steps in each.
          by: "window": all pieces of `slice_len` steps are equally likely. "trajectory": first an episode is sampled
            uniformly from those that are long enough, then a piece of it.
          strict_length: if False, an episode with fewer than `slice_len` stored steps is a piece too, padded at its
            end.
          replace: if False, no piece is sampled twice.
          burn_in: the number of steps before each piece to return with it, to fill the state of recurrent models; fewer
            at the beginning of an episode.
          env: normalizes observations and rewards.

        Raises:
          ValueError: an argument is out of its range, or too few pieces are stored.
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
            lambda taken: self._normalize_obs(taken, env),
            lambda taken: self._normalize_reward(taken, env),
            self.device,
        )
        return samples._replace(weights=weights)

    def _draw_windows(
        self, ring: Ring, num_slices: int, slice_len: int, by: str, strict_length: bool, replace: bool
    ) -> tuple[windows.Windows, Any]:
        """Return windows, and their importance weights or None."""
        return windows.draw(ring, num_slices, slice_len, by, strict_length, replace), None

    # --- Files ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write all that is stored to disk, if it is in files, so that it survives whatever happens to the process."""
        if self._device_store is None and self._ring is not None:  # data on the device is never in files
            self._ring.storage.flush(self._ring)

    def close(self) -> None:
        """Flush the files and let other processes open the folder; without files, do nothing.

        With files, the buffer cannot be used afterwards.
        """
        if self._storage != "memmap":
            return
        storage = self.ring_on_host().storage
        if isinstance(storage, MemoryMapped):
            self.flush()
            storage.close()
            self._ring = Closed(storage.path)  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        # Only the folder of the files is pickled, because they may hold more than memory.
        state = super().__getstate__()
        self.flush()
        storage = self.ring_on_host().storage
        if isinstance(storage, MemoryMapped):
            state["_path"], state["_ring"] = storage.path, None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__class__ = _kind(type(self), state)  # for pickles from versions without subclasses
        if state["_ring"] is None:
            self._ring = open_ring(state["_path"]) or self._make_ring()
            self._begin()

    def _begin(self) -> None:
        """Start anew, called when the ring's content was replaced."""

    def _moved(self) -> None:
        self._begin()

    def reset(self) -> None:
        """Delete all that is stored."""
        super().reset()
        self._begin()


class DictReplayBuffer(ReplayBuffer, buffers.DictReplayBuffer):
    """ReplayBuffer of Dict observations, which `isinstance` finds to be SB3's DictReplayBuffer."""

    is_known = True


class NStepReplayBuffer(ReplayBuffer, getattr(buffers, "NStepReplayBuffer", buffers.ReplayBuffer)):  # type: ignore[misc]
    """ReplayBuffer of n-step returns, which `isinstance` finds to be SB3's NStepReplayBuffer."""

    is_known = True


class PrioritizedReplayBuffer(ReplayBuffer):
    """Replay buffer that samples in proportion to priorities (Schaul et al. 2016, https://arxiv.org/abs/1511.05952).

    Use it to sample transitions with large temporal-difference errors more often. bridge.DQN, SAC, TD3 and DDPG weigh
    its samples, and set priorities to the errors that they compute. Its data may be in files; priorities are in memory.
    """

    is_known = True

    def __init__(self, *args: Any, alpha: float = 0.6, beta: float = 0.4, **kwargs: Any) -> None:
        """Allocate the arrays, or open the files, and start with equal priorities.

        Args:
          args, kwargs: the arguments of ReplayBuffer.
          alpha: samples are drawn in proportion to priority ** alpha. New transitions have the greatest priority so
            far, and `update_priorities` sets other ones.
          beta: the exponent of importance weights, an attribute that may be changed during training.
        """
        if not alpha >= 0:
            raise ValueError(f"alpha must be at least 0, got {alpha!r}.")
        self.alpha, self.beta = alpha, beta
        super().__init__(*args, **kwargs)
        self._begin()

    def _begin(self) -> None:
        self.priorities = Priorities(self.ring_on_host(), self.alpha)

    def _written(self, rows: int) -> None:
        self.priorities.mark_written(self.ring_on_host(), rows)

    def why_not_on_device(self) -> str | None:
        """Return why the data cannot move to the device for compiled functions."""
        return "it has priorities"

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Sample transitions in proportion to their priorities, with replacement.

        Args:
          batch_size: the number of transitions.
          env: normalizes observations and rewards.

        Returns:
          PrioritizedSamples: SB3's samples with `weights` and `indices`.

        Raises:
          ValueError: nothing is stored, or all priorities are 0.
        """
        self._stored_ring("sample")
        slots, likely = self.priorities.draw(batch_size)
        found = self._transitions(slots, env)._asdict()
        weights = self._tensor(importance_weights(likely, self.beta))
        return PrioritizedSamples(**found, weights=weights, indices=self._tensor(slots))

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Set the priorities of transitions, such as the absolute values of their temporal-difference errors.

        Args:
          indices: the `indices` of samples. If a transition was overwritten since, the new one at its place is meant.
            Ignored are -1, where a slice has no step, and what is not stored any more, as after a `reset`.
          priorities: an array of the same shape, 0 or more.

        Raises:
          ValueError: a priority or an index is out of its range. Nothing changed.
        """
        new = columns.to_host(priorities).astype(np.float64)
        self.priorities.update(self.ring_on_host(), columns.to_host(indices), new)

    def _draw_windows(
        self, ring: Ring, num_slices: int, slice_len: int, by: str, strict_length: bool, replace: bool
    ) -> tuple[windows.Windows, Any]:
        """Sample in proportion to the sums of the priorities of a window's steps."""
        if by != "window" or not strict_length:
            raise ValueError("With priorities, sample_slices needs by='window' and strict_length=True.")
        drawn, likely = self.priorities.draw_windows(ring, num_slices, slice_len, replace)
        return drawn, self._tensor(importance_weights(likely, self.beta))


def _kind(cls: type[Any], given: dict[str, Any]) -> type[Any]:
    """Return the subclass for these arguments if the class is ReplayBuffer, else the class itself."""
    if cls is not ReplayBuffer:
        return cls
    if given.get("alpha") is not None:
        return PrioritizedReplayBuffer
    if given.get("n_steps", 1) > 1:
        return NStepReplayBuffer
    return DictReplayBuffer if isinstance(given.get("observation_space"), spaces.Dict) else ReplayBuffer
