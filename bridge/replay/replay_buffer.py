"""ReplayBuffer: SB3's replay buffers, with slices, files and offline data."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self, SupportsIndex

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples, TensorDict
from stable_baselines3.common.vec_env import VecNormalize

from bridge.replay import columns, files, windows
from bridge.replay.columns import map_leaves
from bridge.replay.episode_index import Episodes
from bridge.replay.offline import OfflineData
from bridge.sb3 import NStepReplayBuffer as SB3sNStepReplayBuffer
from bridge.sb3 import Space
from jaxenvs import arguments


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


class ReplayBuffer(OfflineData):
    """Replay buffer that is SB3's ReplayBuffer, DictReplayBuffer or NStepReplayBuffer, with slices of episodes.

    It has SB3's arrays, and samples the transitions that SB3's buffers sample from the same seed. The off-policy
    algorithms of jaxenvs.sb3 use it by default. Choose it explicitly to keep data in files, to sample slices of
    episodes for sequence models, or to load offline data (`from_episodes`, `from_arrays`, `from_minari`, `from_sb3`).
    """

    saved_as: ClassVar[type[buffers.ReplayBuffer] | None] = buffers.ReplayBuffer
    _files: files.Files | None = None
    _episodes: Episodes | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an instance of the subclass that fits the arguments.

        With `n_steps` above 1 or Dict observations, that is a subclass of SB3's class for them too, so that
        `isinstance` finds it.
        """
        given = dict(zip(inspect.signature(ReplayBuffer.__init__).parameters, (cls, *args))) | kwargs
        kind: type[Any] = cls
        if cls is ReplayBuffer and arguments.positive_int("n_steps", given.get("n_steps", 1)) > 1:
            kind = NStepReplayBuffer
        elif cls is ReplayBuffer and isinstance(given.get("observation_space"), spaces.Dict):
            kind = DictReplayBuffer
        made: Self = super().__new__(kind)
        return made

    def __init__(
        self,
        buffer_size: int,
        observation_space: Space,
        action_space: Space,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_steps: int = 1,
        gamma: float = 0.99,
        storage: str = "ram",
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Allocate the arrays, or open the files.

        Args:
          buffer_size: the number of transitions, of all environments together; at least one of each is stored.
          observation_space, action_space: of the environments.
          device: where samples are.
          n_envs: the number of environments.
          optimize_memory_usage, handle_timeout_termination: as in SB3.
          n_steps: the number of rewards that are summed, discounted by `gamma`, as in SB3's NStepReplayBuffer.
          gamma: the discount of n-step returns.
          storage: "ram", or "memmap" for the arrays in files, if they need more than memory.
          path: the folder of the files. If it holds a previous buffer's files, their content is restored, as of the
            last `flush`.

        Raises:
          ValueError: an argument is out of its range, or the folder belongs to another buffer.
          OSError: the disk is full.
        """
        for name, value in (("buffer_size", buffer_size), ("n_envs", n_envs), ("n_steps", n_steps)):
            arguments.integer(name, value, 1, None, "a positive int")
        if n_steps > 1 and "discounts" not in ReplayBufferSamples._fields:
            raise ValueError(f"n_steps must be 1 with this version of Stable-Baselines3, got {n_steps}.")
        if n_steps > 1 and optimize_memory_usage:
            raise ValueError("optimize_memory_usage must be False with n_steps above 1, as in SB3, got True.")
        arguments.one_of("storage", storage, ("ram", "memmap"))
        if (path is None) == (storage == "memmap"):
            raise ValueError(f"path must be a folder with storage='memmap' and None otherwise, got {path!r}.")
        self._sb3s = buffers.DictReplayBuffer if isinstance(observation_space, spaces.Dict) else buffers.ReplayBuffer
        # With files, SB3 allocates one row, which shows the shapes.
        size = buffer_size if path is None else n_envs
        settings = optimize_memory_usage, handle_timeout_termination
        self._sb3s.__init__(self, size, observation_space, action_space, device, n_envs, *settings)
        self.n_steps, self.gamma = n_steps, gamma
        if path is not None:
            self.buffer_size = max(buffer_size // n_envs, 1)
            self._files = files.Files(path, self)

    def why_not_on_device(self) -> str | None:
        """Return why the data cannot move to the device for compiled functions; None if it can."""
        return super().why_not_on_device() if self._files is None else "it is in files"

    # --- Drawing --------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Sample transitions uniformly, with replacement.

        Args:
          batch_size: the number of transitions.
          env: normalizes observations and rewards.

        Returns:
          SB3's ReplayBufferSamples, or DictReplayBufferSamples for Dict observations: tensors on `device`. `discounts`,
            which only n-step samples have, multiply the value of `next_observations`.

        Raises:
          ValueError: nothing is stored.
        """
        first, size = self._require_stored("sample")
        rows = np.random.randint(0, size, size=batch_size)  # noqa: NPY002
        if size < self.buffer_size and first:
            rows = (rows + first) % self.buffer_size
        return self._get_samples(rows, env)

    def _require_stored(self, method: str) -> tuple[int, int]:
        first, size = self.stored()
        if size <= 0:
            raise ValueError(f"{method} needs at least one stored transition, but the replay buffer is empty.")
        return first, size

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        env_indices = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))  # noqa: NPY002
        return self._transitions(batch_inds * self.n_envs + env_indices, env)

    def _transitions(self, slots: np.ndarray, env: VecNormalize | None) -> Any:
        """Return the transitions in slots, row * n_envs + environment, as SB3's samples."""
        tensor, last, more = self._tensor, slots, {}
        if self.n_steps == 1:
            reward = self._normalize_reward(columns.take(self.rewards, slots).reshape(-1, 1), env)
        else:
            following, count = self._following(slots)
            last = following[np.arange(len(slots)), count - 1]
            mask = np.arange(self.n_steps) < count[:, None]
            # In the order of SB3's operations, so that the results are bitwise SB3's.
            decay = self.gamma ** np.arange(self.n_steps, dtype=np.float32).reshape(1, -1)
            rewards = self._normalize_reward(columns.take(self.rewards, following), env)
            reward = (rewards * decay * mask).sum(axis=1, keepdims=True)
            more["discounts"] = tensor(self.gamma ** count[:, None].astype(np.float32))
        observation = map_leaves(lambda leaf: columns.take(leaf, slots), self.observations)
        done = columns.take(self.dones, last) * (1 - columns.take(self.timeouts, last))
        samples = DictReplayBufferSamples if isinstance(observation, dict) else ReplayBufferSamples
        return samples(
            observations=map_leaves(tensor, self._normalize_obs(observation, env)),
            actions=tensor(columns.take(self.actions, slots)),
            next_observations=map_leaves(tensor, self._normalize_obs(self._next_observations(last), env)),
            dones=tensor(done.reshape(-1, 1)),
            rewards=tensor(reward),
            **more,
        )

    def _next_observations(self, slots: np.ndarray) -> Any:
        if self.optimize_memory_usage:
            return columns.take(self.observations, slots + self.n_envs)
        return map_leaves(lambda leaf: columns.take(leaf, slots), self.next_observations)

    def _following(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the slots that follow within `n_steps`, up to the end of the episode or the newest row.

        Returns:
          (num, n_steps) slots, and how many of them count, from the first on: (num,), at least 1.
        """
        following = (slots[:, None] + np.arange(self.n_steps) * self.n_envs) % (self.buffer_size * self.n_envs)
        ended = (columns.take(self.dones, following) != 0) | (columns.take(self.timeouts, following) != 0)
        to_end = np.where(ended.any(axis=1), ended.argmax(axis=1) + 1, self.n_steps)
        to_newest = (self.pos - 1 - slots // self.n_envs) % self.buffer_size + 1
        return following, np.minimum(to_end, to_newest)

    @property
    def _tensor(self) -> Callable[[np.ndarray], torch.Tensor]:
        """Function that makes a tensor on `device` of an array without other references, whose memory it may share."""
        if self.device.type == "cpu":
            return torch.from_numpy
        return lambda array: torch.from_numpy(array).to(self.device)

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

        The first call reads all that is stored, to find where episodes begin. Later calls read what was added since.

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
        arguments.one_of("by", by, ("window", "trajectory"))
        self._require_stored("sample_slices")  # which forgets episodes if `pos` was moved
        if self._episodes is None:
            self._episodes = Episodes(self)
        self._episodes.update(self)
        drawn, weights = self._draw_windows(self._episodes, num_slices, slice_len, by, strict_length, replace)
        return self._gather(self._episodes, drawn, slice_len, burn_in, env, weights)

    def _draw_windows(
        self, episodes: Episodes, num_slices: int, slice_len: int, by: str, strict_length: bool, replace: bool
    ) -> tuple[windows.Windows, torch.Tensor | None]:
        """Return windows, and their importance weights or None."""
        return windows.draw(episodes, num_slices, slice_len, by, strict_length, replace), None

    def _gather(
        self,
        episodes: Episodes,
        drawn: windows.Windows,
        slice_len: int,
        burn_in: int,
        env: VecNormalize | None,
        weights: torch.Tensor | None,
    ) -> SliceSamples:
        """Return the steps in windows of at most `slice_len` slots, and before them, one slice a row.

        burn_in = 2, slice_len = 4        column    0    1    2    3    4    5
        the episode began one step before           -    s0   s1   s2   s3   s4     mask: False in column 0
        a window of 3 slots                         s5   s6   s7   s8   s9   -      mask: False in column 5
        """
        last, size = drawn
        first = (last - (size - 1) * self.n_envs) % episodes.num_slots
        before = np.minimum(episodes.ages(first), burn_in) if burn_in else np.zeros_like(size)
        column = np.arange(-burn_in, slice_len)
        # A column without a step repeats an existing one, and is set to zero at the end.
        step = np.clip(column, -before[:, None], size[:, None] - 1)
        mask = step == column
        slots = (first[:, None] + step * self.n_envs) % episodes.num_slots

        observation = map_leaves(lambda leaf: columns.take(leaf, slots), self.observations)
        done, timeout = columns.take(self.dones, slots) != 0, columns.take(self.timeouts, slots) != 0
        terminated = done & ~timeout
        fields = {
            "observations": self._normalize_obs(observation, env),
            "actions": columns.take(self.actions, slots),
            "rewards": self._normalize_reward(columns.take(self.rewards, slots), env),
            "next_observations": self._normalize_obs(self._next_observations(slots), env),
            "terminated": terminated,
            "truncated": timeout | (episodes.is_last(slots) & ~terminated),
            "episode_steps": columns.take(episodes.steps, slots).astype(np.int64),
            "indices": slots,
        }
        if not mask.all():
            absent = ~mask
            for name, field in fields.items():
                for leaf in columns.leaves(field):
                    leaf[absent] = -1 if name == "indices" else 0
        tensors = {name: map_leaves(self._tensor, field) for name, field in fields.items()}
        return SliceSamples(mask=self._tensor(mask), weights=weights, **tensors)

    # --- Files ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write all that is stored to disk, if it is in files, so that it survives whatever happens to the process."""
        if self._files is not None:
            self._files.flush(self)

    def close(self) -> None:
        """Flush the files and let other processes open the folder; without files, do nothing.

        With files, the buffer cannot be used afterwards.
        """
        if self._files is not None:
            self._files.close(self)

    def reset(self) -> None:
        """Delete all that is stored."""
        super().reset()
        self.flush()

    def _forget(self) -> None:
        vars(self).pop("_episodes", None)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        # Only the folder of the files is pickled, because they may hold more than memory.
        return super().__reduce_ex__(protocol) if self._files is None else self._files.reduced(self)


class DictReplayBuffer(ReplayBuffer, buffers.DictReplayBuffer):
    """ReplayBuffer of Dict observations, which `isinstance` finds to be SB3's DictReplayBuffer."""

    saved_as = buffers.DictReplayBuffer


class NStepReplayBuffer(ReplayBuffer, SB3sNStepReplayBuffer or buffers.ReplayBuffer):  # type: ignore[misc]
    """ReplayBuffer of n-step returns, which `isinstance` finds to be SB3's NStepReplayBuffer."""

    saved_as = SB3sNStepReplayBuffer
