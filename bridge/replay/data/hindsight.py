"""HerReplayBuffer: SB3's, as a ring that compiled functions can use, with the same samples from the same seed."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from typing import Any, Self

import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer as SB3sHerReplayBuffer

from bridge.replay.data.offline import settings_of
from bridge.replay.store import columns, transitions
from bridge.replay.store.replay_buffer import RingReplayBuffer
from bridge.replay.store.ring import Ring
from bridge.sb3 import Space
from jaxenvs.learn import Hindsight, Replay
from jaxenvs.learn.interfaces import Arrays
from jaxenvs.learn.off_policy.store.episode_index import Episodes
from jaxenvs.learn.off_policy.store.hindsight import require_goal_space


class HerReplayBuffer(RingReplayBuffer, SB3sHerReplayBuffer):
    """Replay buffer with hindsight goals (HER) that stores observations once.

    Use it for environments with goals and sparse rewards. It samples what SB3's HerReplayBuffer samples from the same
    seed of NumPy's global generator, in a time that does not grow with its size: only transitions of complete episodes,
    most of them with a goal that the episode achieved, and the reward that the environments compute for it.
    """

    is_known = True

    def __init__(
        self,
        buffer_size: int,
        observation_space: Space,
        action_space: Space,
        env: VecEnv,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
    ) -> None:
        """Allocate the arrays.

        Args:
          buffer_size: the number of transitions, of all environments together.
          observation_space: with `observation`, `achieved_goal` and `desired_goal`.
          action_space: of the environments.
          env: the environments, whose `compute_reward` is called.
          device, n_envs, optimize_memory_usage, handle_timeout_termination: as in ReplayBuffer.
          n_sampled_goal: the number of transitions with new goals for each one with its own.
          goal_selection_strategy: "future", "final" or "episode", or SB3's enumeration of them.
          copy_info_dict: whether `compute_reward` receives the infos of the steps.

        Raises:
          TypeError: observations do not contain goals.
          ValueError: an argument is out of its range.
        """
        require_goal_space(observation_space)
        if isinstance(goal_selection_strategy, str):
            known = KEY_TO_GOAL_STRATEGY.get(goal_selection_strategy.lower())
            if known is None:
                names = ", ".join(map(repr, KEY_TO_GOAL_STRATEGY))
                raise ValueError(f"goal_selection_strategy must be one of {names}, got {goal_selection_strategy!r}.")
            goal_selection_strategy = known
        RingReplayBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage,
            handle_timeout_termination,
        )  # fmt: skip
        self.env, self.copy_info_dict = env, copy_info_dict
        self.n_sampled_goal, self.goal_selection_strategy = n_sampled_goal, goal_selection_strategy
        self.her_ratio = 1 - (1.0 / (self.n_sampled_goal + 1))
        self.infos = np.empty((self.buffer_size if copy_info_dict else 0, self.n_envs), object)
        self._begin()

    def _begin(self) -> None:
        per_env = (np.zeros(self.n_envs, np.int32) for _ in range(4))
        self._episodes = Episodes(np.zeros((self.buffer_size, self.n_envs), np.int32), *per_env)

    @property
    def hindsight(self) -> Hindsight:
        """The settings as `jaxenvs.learn` takes them, from `her_ratio`, which your code may change."""
        return Hindsight(self._num_sampled, self.goal_selection_strategy.name.lower())

    @property
    def _num_sampled(self) -> int:
        return max(round(1 / (1 - self.her_ratio)) - 1, 0) if self.her_ratio < 1 else 0

    # --- Storing --------------------------------------------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Store one step of every environment; arguments as in RingReplayBuffer."""
        row = self.ring_on_host().position % self.buffer_size
        super().add(obs, next_obs, action, reward, done, infos)
        if self.copy_info_dict:
            self.infos[row] = infos
        self._write(row, np.asarray(done, bool).reshape(self.n_envs))

    def add_rollout(
        self, observations: Any, actions: Any, rewards: Any, terminated: Any, truncated: Any, final_observations: Any
    ) -> None:
        """Store a whole rollout, as ReplayBuffer does. It has no infos, so `copy_info_dict` must be False."""
        if self.copy_info_dict:
            raise ValueError("add_rollout cannot store infos, so it needs copy_info_dict=False, got True.")
        row = self.ring_on_host().position % self.buffer_size
        super().add_rollout(observations, actions, rewards, terminated, truncated, final_observations)
        done = columns.to_host(terminated).astype(bool) | columns.to_host(truncated).astype(bool)
        for step, ended in enumerate(done.reshape(-1, self.n_envs)):
            self._write((row + step) % self.buffer_size, ended)

    def _write(self, row: int, done: np.ndarray) -> None:
        """Do in place what Episodes.add does."""
        episodes = self._episodes
        lost = ((episodes.first == row) & (episodes.count > 0)).nonzero()[0]
        if len(lost):
            length = -episodes.extent[row, lost]
            episodes.first[lost] = (episodes.first[lost] + length) % self.buffer_size
            episodes.count[lost] -= length
        episodes.extent[row] = (row - episodes.begin) % self.buffer_size
        if done.any():
            self._end(done.nonzero()[0], row + 1)

    def _end(self, env_indices: np.ndarray, row: int) -> None:
        """End the episodes of some environments before a row."""
        episodes = self._episodes
        length = (row - episodes.begin[env_indices]) % self.buffer_size
        whole = env_indices[length > 0]
        begin = episodes.begin[whole]
        episodes.extent[begin, whole] = -length[length > 0]
        episodes.first[whole] = np.where(episodes.count[whole] == 0, begin, episodes.first[whole])
        episodes.count[whole] += length[length > 0]
        episodes.begin[env_indices] = row % self.buffer_size

    def truncate_last_trajectory(self) -> None:
        """End running episodes with their newest step, as SB3 does, so that they can be sampled."""
        ring, handles = self.ring_on_host(), self.handle_timeout_termination
        env_indices = (self._episodes.begin != ring.position % self.buffer_size).nonzero()[0]
        if not len(env_indices):
            return
        warnings.warn(
            "The last trajectory in the replay buffer will be truncated.\n"
            "If you are in the same episode as when the replay buffer was saved,\n"
            "you should use `truncate_last_trajectory=False` to avoid that issue.",
            stacklevel=2,
        )
        ring.end(env_indices, is_terminal=not handles)
        self._end(env_indices, ring.position)

    def reset(self) -> None:
        """Delete all that is stored."""
        super().reset()
        self._begin()

    # --- Drawing --------------------------------------------------------------------------------------------------

    def require_whole_episode(self) -> None:
        """Raise RuntimeError, as SB3 does, unless an episode has ended."""
        episodes = self._episodes if self._device_store is None else self._device_store.episodes
        assert episodes is not None
        if not np.asarray(episodes.count).any():
            raise RuntimeError(
                "Unable to sample before the end of the first episode. We recommend choosing a value "
                "for learning_starts that is greater than the maximum number of timesteps in the environment."
            )

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Sample transitions of complete episodes, with replacement: first with their own goals, then with new ones.

        Args:
          batch_size: the number of transitions.
          env: normalizes observations and rewards.

        Raises:
          RuntimeError: no episode has ended yet.
        """
        ring = self.ring_on_host()
        self.require_whole_episode()
        rows, env_indices = self._draw(batch_size)
        num = int(self.her_ratio * batch_size)
        goal = self._goals(ring, rows[:num], env_indices[:num]) if num else None
        rows, env_indices = np.roll(rows, -num), np.roll(env_indices, -num)
        slots = rows * self.n_envs + env_indices
        tag = transitions.tags(ring, slots)
        observation = transitions.observations(ring, slots)
        following = transitions.next_observations(ring, slots, tag)
        reward = columns.take(ring.reward, slots)
        if num:
            observation["desired_goal"][-num:] = following["desired_goal"][-num:] = goal
            infos: Any = [{} for _ in range(num)]
            if self.copy_info_dict:
                infos = copy.deepcopy(self.infos[rows[-num:], env_indices[-num:]])
            assert self.env is not None, "HerReplayBuffer.set_env must be called before it can compute rewards."
            reward[-num:] = self.env.env_method(
                "compute_reward", following["achieved_goal"][-num:], goal, infos, indices=[0]
            )[0]
        reward = self._normalize_reward(reward.reshape(-1, 1), env)
        return self._samples(slots, tag, observation, following, reward, env)

    def _draw(self, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Sample rows and environments uniformly from the slots of complete episodes, numbered row by row as in SB3."""
        episodes, size = self._episodes, self.buffer_size
        number = np.random.randint(0, episodes.count.sum(), size=batch_size)  # noqa: NPY002
        # Between two rows in which complete episodes of an environment begin or end, all rows have the same
        # environments.
        first, end = episodes.first, episodes.first + episodes.count
        edges = np.unique(np.concatenate([[0, size], first, end % size]))
        from_first = (edges[:-1, None] - first) % size
        is_complete = from_first < episodes.count  # (pieces, n_envs)
        width = is_complete.sum(1)
        ends = np.cumsum(width * np.diff(edges))
        piece = np.searchsorted(ends, number, side="right")
        number = number - (ends - width * np.diff(edges))[piece]
        rows = edges[piece] + number // width[piece]
        # For each piece, the environments with complete episodes come first.
        env_indices = np.argsort(~is_complete, axis=1, kind="stable")[piece, number % width[piece]]
        return rows, env_indices

    def _goals(self, ring: Ring, rows: np.ndarray, env_indices: np.ndarray) -> np.ndarray:
        age = np.maximum(self._episodes.extent[rows, env_indices], 0).astype(np.int64)
        begin = (rows - age) % self.buffer_size
        length = -self._episodes.extent[begin, env_indices].astype(np.int64)
        if self.goal_selection_strategy is GoalSelectionStrategy.FINAL:
            step = length - 1
        elif self.goal_selection_strategy is GoalSelectionStrategy.FUTURE:
            step = np.random.randint(age, length)  # noqa: NPY002
        else:
            step = np.random.randint(0, length)  # noqa: NPY002
        names = ("observation", "last_observation", "end_observation")
        achieved = dataclasses.replace(ring, **{name: getattr(ring, name)["achieved_goal"] for name in names})
        slots = (begin + step) % self.buffer_size * self.n_envs + env_indices
        goals: np.ndarray = transitions.next_observations(achieved, slots, transitions.tags(ring, slots))
        return goals

    # --- Data on the device ---------------------------------------------------------------------------------------

    def why_not_on_device(self) -> str | None:
        """Return why the data cannot move to the device for compiled functions; None if it can."""
        if self.copy_info_dict:
            return "copy_info_dict is True"
        if not math.isclose(self.her_ratio, 1 - 1 / (self._num_sampled + 1)):
            return f"her_ratio is {self.her_ratio:.3g}, which no n_sampled_goal gives"
        return super().why_not_on_device()

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the environments, which `set_env` sets after loading, as in SB3."""
        state = super().__getstate__()
        state.pop("env")
        return state

    def ring_on_host(self) -> Ring:
        """Return what is stored, in memory, with the index of episodes; see RingReplayBuffer."""
        if self._device_store is not None:
            store = self._device_store.episodes
            assert store is not None
            self._begin()
            mine = self._episodes
            mine.extent[: store.capacity] = store.extent
            for name in ("begin", "first", "count"):
                getattr(mine, name)[:] = getattr(store, name)
        return super().ring_on_host()

    def to_device(self, observation: Arrays, num_steps: int, mesh: Mesh | None = None) -> Replay:
        """Return what is stored as compiled functions take it, on one device; see RingReplayBuffer.

        It cannot be divided among devices, because the index of episodes covers all environments.
        """
        assert mesh is None
        replay = super().to_device(observation, num_steps)
        if replay.episodes is None:
            mine = self._episodes
            oldest = -mine.extent[mine.first, np.arange(self.n_envs)]  # the ring on the host does not keep it
            arrays = mine.extent[: replay.capacity], mine.begin, mine.first, mine.count, oldest
            self._device_store = replay = dataclasses.replace(replay, episodes=Episodes(*map(jnp.array, arrays)))
        return replay

    # --- What SB3's has, too --------------------------------------------------------------------------------------

    @classmethod
    def from_sb3(cls, buffer: SB3sHerReplayBuffer) -> Self:
        """Return a buffer with the content of SB3's HerReplayBuffer, row by row."""
        settings = settings_of(buffer, "n_sampled_goal", "goal_selection_strategy")
        made = cls(env=buffer.env, **settings)  # type: ignore[arg-type]
        ring, rows = made.ring_on_host(), np.arange(buffer.size())
        if buffer.full:
            ring.position, rows = buffer.pos, (rows + buffer.pos) % buffer.buffer_size
        for index in rows.tolist():
            ended = buffer.dones[index].nonzero()[0]
            timeout = buffer.timeouts[index, ended].astype(bool)
            before, after = (columns.at(each, index) for each in (buffer.observations, buffer.next_observations))
            ring.append(before, buffer.actions[index], buffer.rewards[index], after, (ended, ~timeout, timeout))
        if buffer.copy_info_dict:
            made.copy_info_dict, made.infos = True, buffer.infos.copy()
        made.her_ratio = buffer.her_ratio
        whole = buffer.ep_length > 0
        row = np.arange(buffer.buffer_size)[:, None]
        age = (row - buffer.ep_start) % buffer.buffer_size
        mine = made._episodes
        mine.extent[:] = np.where(whole & (age == 0), -buffer.ep_length, age)
        mine.begin[:] = buffer._current_ep_start
        mine.count[:] = whole.sum(0)
        # The first complete slot after one that is not, searched in a circle from the row that is written next.
        following = (buffer.pos + row[:, 0]) % buffer.buffer_size
        mine.first[:] = np.where(mine.count > 0, following[whole[following].argmax(0)], 0)
        return made

    @property
    def ep_length(self) -> np.ndarray:  # type: ignore[override]
        """Length of each slot's episode, (buffer_size, n_envs); 0 if it is not stored completely. Read-only."""
        self.ring_on_host()
        mine, row = self._episodes, np.arange(self.buffer_size)[:, None]
        whole = (row - mine.first) % self.buffer_size < mine.count
        return _read_only(np.where(whole, -np.take_along_axis(mine.extent, self.ep_start, axis=0), 0).astype(np.int64))

    @property
    def ep_start(self) -> np.ndarray:  # type: ignore[override]
        """Row in which each slot's episode begins, (buffer_size, n_envs). Read-only."""
        self.ring_on_host()
        row = np.arange(self.buffer_size)[:, None]
        return _read_only((row - np.maximum(self._episodes.extent, 0)) % self.buffer_size)

    @property
    def _current_ep_start(self) -> np.ndarray:  # type: ignore[override]
        """Row in which each environment's running episode begins, (n_envs,), as user code reads it. Not a copy."""
        self.ring_on_host()
        begin: np.ndarray = self._episodes.begin
        return begin


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
