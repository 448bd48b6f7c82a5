"""HerReplayBuffer: SB3's, whose rows compiled functions can take to the device."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as SB3sHerReplayBuffer

from bridge.replay import columns
from bridge.replay.columns import Observation
from bridge.replay.rows import Array, Rows
from jaxenvs.learn import Hindsight, Replay
from jaxenvs.learn.off_policy.store.episode_index import Episodes


class HerReplayBuffer(Rows, SB3sHerReplayBuffer):
    """Replay buffer with hindsight goals (HER): SB3's, whose rows compiled functions can take to the device.

    Use it for environments with goals and sparse rewards. Only transitions of complete episodes are sampled, most of
    them with a goal that the episode achieved, and the reward that the environments compute for it.

    Args:
      buffer_size: the number of transitions, of all environments together.
      observation_space: with `observation`, `achieved_goal` and `desired_goal`.
      action_space: of the environments.
      env: the environments, whose `compute_reward` is called.
      device, n_envs, optimize_memory_usage, handle_timeout_termination: as in SB3.
      n_sampled_goal: the number of transitions with new goals for each one with its own.
      goal_selection_strategy: "future", "final" or "episode", or SB3's enumeration of them.
      copy_info_dict: whether `compute_reward` receives the infos of the steps.
    """

    _sb3s = saved_as = SB3sHerReplayBuffer
    ep_start = Array()
    ep_length = Array()
    _current_ep_start = Array()

    @property
    def hindsight(self) -> Hindsight:
        """The settings as `jaxenvs.learn` takes them, from `her_ratio`, which your code may change."""
        return Hindsight(self._num_sampled, self.goal_selection_strategy.name.lower())

    @property
    def _num_sampled(self) -> int:
        return max(round(1 / (1 - self.her_ratio)) - 1, 0) if self.her_ratio < 1 else 0

    def _write_rows(
        self, before: Observation, after: Observation, action: np.ndarray, reward: np.ndarray, done: np.ndarray,
        timeout: np.ndarray,
    ) -> None:  # fmt: skip
        if self.copy_info_dict:
            raise ValueError("add_rollout cannot store infos, so it needs copy_info_dict=False, got True.")
        for step, timeouts in enumerate(timeout.tolist()):
            infos = [{"TimeLimit.truncated": each} for each in timeouts]
            self.add(columns.at(before, step), columns.at(after, step), action[step], reward[step], done[step], infos)

    def reset(self) -> None:
        """Delete all that is stored, with the index of episodes, which SB3's buffer would keep."""
        super().reset()
        for array in (self.ep_start, self.ep_length, self._current_ep_start):
            array[:] = 0

    def require_whole_episode(self) -> None:
        """Raise RuntimeError, as SB3 does, unless an episode has ended."""
        if self._store is None:
            has_one = (self.ep_length > 0).any()
        else:
            assert self._store.episodes is not None
            has_one = np.asarray(self._store.episodes.count).any()
        if not has_one:
            self.sample(1)  # which raises it

    # --- On the device --------------------------------------------------------------------------------------------

    def why_not_on_device(self) -> str | None:
        """Return why the data cannot move to the device for compiled functions; None if it can."""
        if self.copy_info_dict:
            return "copy_info_dict is True"
        if not math.isclose(self.her_ratio, 1 - 1 / (self._num_sampled + 1)):
            return f"her_ratio is {self.her_ratio:.3g}, which no n_sampled_goal gives"
        return super().why_not_on_device()

    def _upload(self, num_steps: int, mesh: Mesh | None) -> Replay:
        """Return the rows as a store on one device, with its index of episodes."""
        extent, *per_env = self._index()
        replay = super()._upload(num_steps, mesh)
        episodes = Episodes(*map(jnp.array, (extent[: replay.capacity], *per_env)))
        return dataclasses.replace(replay, episodes=episodes)

    def _index(self) -> tuple[np.ndarray, ...]:
        """Return the fields of Episodes for SB3's index of episodes."""
        row, whole = np.arange(self.buffer_size)[:, None], self.ep_length > 0
        age = (row - self.ep_start) % self.buffer_size
        extent = np.where(whole & (age == 0), -self.ep_length, age).astype(np.int32)
        # The oldest complete slot, searched in a circle from the row that is written next.
        following = (self.pos + row[:, 0]) % self.buffer_size
        first = np.where(whole.any(0), following[whole[following].argmax(0)], 0)
        oldest = -extent[first, np.arange(self.n_envs)]
        per_env = (self._current_ep_start, first, whole.sum(0), oldest)
        return extent, *(each.astype(np.int32) for each in per_env)

    def _download(self, store: Replay) -> dict[str, object]:
        """Return SB3's arrays, with its index of episodes."""
        episodes = store.episodes
        assert episodes is not None
        extent = np.zeros((self.buffer_size, self.n_envs), np.int64)
        extent[: episodes.capacity] = episodes.extent
        row = np.arange(self.buffer_size)[:, None]
        start = (row - np.maximum(extent, 0)) % self.buffer_size
        whole = (row - np.asarray(episodes.first)) % self.buffer_size < np.asarray(episodes.count)
        length = np.where(whole, -np.take_along_axis(extent, start, axis=0), 0)
        begin = np.array(episodes.begin, np.int64)
        return super()._download(store) | {"ep_start": start, "ep_length": length, "_current_ep_start": begin}

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the environments, which `set_env` sets after loading, as in SB3."""
        state = super().__getstate__()
        state.pop("env")
        return state

    @classmethod
    def from_sb3(cls, buffer: SB3sHerReplayBuffer) -> Self:
        """Return a buffer with the content of SB3's HerReplayBuffer."""
        made = cls.taking(copy.deepcopy(buffer))
        made.env = buffer.env
        return made

    @classmethod
    def taking(cls, buffer: SB3sHerReplayBuffer) -> Self:
        """Return a buffer with the arrays of SB3's, which are not copied."""
        made = object.__new__(cls)
        vars(made).update(vars(buffer))
        return made
