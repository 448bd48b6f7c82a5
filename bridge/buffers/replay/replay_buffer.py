"""ReplayBuffer: in the place of SB3's, for all kinds of observations."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecNormalize

from bridge.buffers.replay import columns, slices, transitions, windows
from bridge.buffers.replay.arguments import require_int, shaped
from bridge.buffers.replay.columns import map_leaves
from bridge.buffers.replay.lending import Lending
from bridge.buffers.replay.memmap import MemoryMapped
from bridge.buffers.replay.offline import OfflineLoading
from bridge.buffers.replay.priorities import Priorities, PrioritizedSamples, importance_weights
from bridge.buffers.replay.ring import Ring
from bridge.buffers.replay.slices import SliceSamples
from bridge.buffers.replay.storage import Closed, make_ring, open_ring
from jaxenvs.learn.off_policy import replay_tags


class ReplayBuffer(OfflineLoading, Lending, buffers.ReplayBuffer):
    """SB3's ReplayBuffer, DictReplayBuffer and NStepReplayBuffer in one, with observations stored once.

    What it draws, from NumPy's global generator, is what SB3's draw from the same seed. Observations of a transition's
    two ends are stored once, always: `optimize_memory_usage` changes nothing, and goes well with
    `handle_timeout_termination`, which with SB3's it does not.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_steps: int = 1,
        gamma: float = 0.99,
        storage: str = "ram",
        path: str | os.PathLike[str] | None = None,
        alpha: float | None = None,
        beta: float = 0.4,
    ) -> None:
        """
        Args:
          buffer_size: how many transitions, of all environments together; at least one of each is stored.
          device: where samples are.
          optimize_memory_usage: ignored, as observations are stored once anyway.
          handle_timeout_termination: whether an episode that a time limit ended is none that ended in a terminal state,
            by `TimeLimit.truncated` of the infos.
          n_steps: so many rewards are summed up, discounted by `gamma`, as by SB3's NStepReplayBuffer.
          storage: "ram"; "device" for observations, actions and rewards on `device`; or "memmap" for them in files, for
            more than memory holds. Tags, four bytes a transition, are in memory.
          path: the folder of the files. What it holds of an earlier buffer is there again, as of the last `flush`.
          alpha: samples are drawn in proportion to their priorities to this power, which new transitions have the
            greatest of and `update_priorities` sets. None: all alike. Priorities are in memory, not in files.
          beta: the exponent of importance weights, an attribute that may be changed as training goes on.

        Raises:
          ValueError: an argument is out of its range, or the folder belongs to another buffer.
          OSError: the disk has not enough room.
        """
        for name, value in (("buffer_size", buffer_size), ("n_envs", n_envs), ("n_steps", n_steps)):
            require_int(name, value, 1)
        if n_steps > 1 and "discounts" not in ReplayBufferSamples._fields:
            raise ValueError(f"n_steps must be 1 with this version of Stable-Baselines3, got {n_steps}.")
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_shape = get_obs_shape(observation_space)  # type: ignore[assignment]
        self.action_dim = get_action_dim(action_space)
        self.device = get_device(device)
        self.n_envs = n_envs
        self.optimize_memory_usage, self.handle_timeout_termination = optimize_memory_usage, handle_timeout_termination
        self.n_steps, self.gamma = n_steps, gamma
        self._storage, self._path = storage, path
        if alpha is not None and not alpha >= 0:
            raise ValueError(f"alpha must be 0 or more, or None, got {alpha!r}.")
        self.alpha, self.beta = alpha, beta
        self.ring = self._make_ring()
        self.priorities = None if alpha is None else Priorities(self.ring, alpha)

    def _make_ring(self) -> Ring:
        return make_ring(
            self._storage,
            self._path,
            self.device,
            self.buffer_size,
            self.n_envs,
            map_leaves(lambda shape, space: (shape, space.dtype), self.obs_shape, self.observation_space),
            ((self.action_dim,), self._maybe_cast_dtype(self.action_space.dtype)),
        )

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Store one step of every environment, as SB3's do.

        Args:
          obs, next_obs, action, reward, done: with the leading axis n_envs. `next_obs` of an environment whose episode
            ended is its last observation, not that of the next episode.
          infos: of each environment; only those of episodes that ended are read.

        Raises:
          ValueError: something has another shape. Nothing changed.
        """
        n_envs = self.n_envs
        obs, next_obs = self._as_stored("obs", obs, (n_envs,)), self._as_stored("next_obs", next_obs, (n_envs,))
        action = shaped("action", action, (n_envs, self.action_dim))
        reward, done = shaped("reward", reward, (n_envs,)), shaped("done", done, (n_envs,))
        ends = None
        if done.any():
            lanes = np.flatnonzero(done)
            timeout = np.zeros(len(lanes), bool)
            if self.handle_timeout_termination:
                timeout[:] = [infos[lane].get("TimeLimit.truncated", False) for lane in lanes.tolist()]
            ends = (lanes, ~timeout, timeout)
        self.ring.append(obs, action, reward, next_obs, ends)
        if self.priorities is not None:
            self.priorities.mark_written(self.ring, 1)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw transitions, each as likely as any other, or in proportion to their priorities; with replacement.

        Args:
          env: normalises observations and rewards.

        Returns:
          SB3's ReplayBufferSamples, or DictReplayBufferSamples of Dict observations: tensors on `device`. `discounts`,
          which only samples of several steps have, are for the value of `next_observations`. With priorities they are
          PrioritizedSamples.

        Raises:
          ValueError: nothing is stored.
        """
        ring = self.ring
        if ring.size == 0:
            raise ValueError("sample needs a transition that is stored, the buffer is empty.")
        if self.priorities is not None:
            slots, likely = self.priorities.draw(batch_size)
            found = self._transitions(slots, env)._asdict()
            weights = self._tensor(importance_weights(likely, self.beta))
            return PrioritizedSamples(**found, weights=weights, indices=self._tensor(slots))
        rows = np.random.randint(0, ring.size, size=batch_size)  # noqa: NPY002
        if ring.size < ring.capacity:
            rows = (rows + ring.oldest) % ring.capacity
        return self._get_samples(rows, env)

    def extend(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        final_observations: Any,
    ) -> None:
        """Store a whole rollout of all environments: torch tensors, NumPy or JAX arrays, of the host without a copy.

        Args:
          observations, actions, rewards, terminated, truncated: with the leading axes (n_steps, n_envs). An episode may
            end in both ways at once.
          final_observations: with the same axes, what each step led to, before any reset. Only those of steps that end
            an episode, and of the last step, are read.

        Raises:
          ValueError: something has another shape. Nothing changed.
        """
        steps = len(rewards)
        lead = (steps, self.n_envs)
        if not steps:
            return
        self.ring.extend(
            self._as_stored("observations", columns.concrete(observations), lead),
            shaped("actions", columns.concrete(actions), (*lead, self.action_dim)),
            shaped("rewards", columns.concrete(rewards), lead),
            shaped("terminated", columns.to_host(terminated), lead).astype(bool),
            shaped("truncated", columns.to_host(truncated), lead).astype(bool),
            self._as_stored("final_observations", columns.concrete(final_observations), lead),
        )
        if self.priorities is not None:
            self.priorities.mark_written(self.ring, steps)

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Set the priorities of transitions, such as the sizes of their temporal-difference errors.

        Args:
          indices: those of samples. What was overwritten since then is another transition by now. Passed over are -1,
            where a slice has no step, and what is stored no more, as after a `reset`.
          priorities: as many, 0 or more.

        Raises:
          ValueError: the buffer was made without `alpha`, or a priority is out of its range. Nothing changed.
        """
        if self.priorities is None:
            raise ValueError("update_priorities needs a buffer with priorities, got one with alpha=None.")
        self.priorities.update(self.ring, columns.to_host(indices), columns.to_host(priorities).astype(np.float64))

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
          by: "window": each piece of so many steps is as likely as any other, or, where there are priorities, in
            proportion to those of its steps, added up. "trajectory": first an episode, of those
            that are long enough, then a piece of it.
          strict_length: False: what is stored of an episode shorter than `slice_len` is a piece too, padded at its end.
          replace: False: no piece comes twice.
          burn_in: so many steps before each piece come with it, fewer at the beginning of an episode, for models that
            have a memory to fill.
          env: normalises observations and rewards.

        Raises:
          ValueError: an argument is out of its range, or not so many pieces are stored.
        """
        for name, value, least in (("num_slices", num_slices, 1), ("slice_len", slice_len, 1), ("burn_in", burn_in, 0)):
            require_int(name, value, least)
        if by not in ("window", "trajectory"):
            raise ValueError(f"by must be 'window' or 'trajectory', got {by!r}.")
        if self.ring.size == 0:
            raise ValueError("sample_slices needs a transition that is stored, the buffer is empty.")
        if self.priorities is None:
            drawn, weights = windows.draw(self.ring, num_slices, slice_len, by, strict_length, replace), None
        else:
            if by != "window" or not strict_length:
                raise ValueError("by must be 'window' and strict_length True where slices are drawn by priorities.")
            drawn, likely = self.priorities.draw_windows(self.ring, num_slices, slice_len, replace)
            weights = self._tensor(importance_weights(likely, self.beta))
        samples = slices.gather(
            self.ring,
            drawn,
            slice_len,
            burn_in,
            lambda taken: taken if env is None else self._normalize_obs(map_leaves(columns.to_host, taken), env),
            lambda taken: taken if env is None else self._normalize_reward(columns.to_host(taken), env),
            self.device,
        )
        return samples._replace(weights=weights)

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        slots = batch_inds
        if self.n_envs > 1:
            lanes = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))  # noqa: NPY002
            slots = batch_inds * self.n_envs + lanes
        return self._transitions(slots, env)

    def _transitions(self, slots: np.ndarray, env: VecNormalize | None) -> Any:
        ring, last, discounts = self.ring, slots, {}
        if self.n_steps == 1:
            reward = self._rewards(slots, env).reshape(-1, 1)
        else:
            following, count = transitions.n_step(ring, slots, self.n_steps)
            last = following[np.arange(len(slots)), count - 1]
            counts = np.arange(self.n_steps) < count[:, None]
            # The order of SB3's operations, so that the bits are SB3's too.
            decay = self.gamma ** np.arange(self.n_steps, dtype=np.float32).reshape(1, -1)
            reward = (self._rewards(following, env) * decay * counts).sum(axis=1, keepdims=True)
            discounts["discounts"] = self._tensor(self.gamma ** count[:, None].astype(np.float32))
        tag = transitions.tags(ring, last)
        observation = transitions.observations(ring, slots)
        following_observation = transitions.next_observations(ring, last, tag)
        if env is not None:
            observation = self._normalize_obs(map_leaves(columns.to_host, observation), env)
            following_observation = self._normalize_obs(map_leaves(columns.to_host, following_observation), env)
        tensor = self._tensor
        return (DictReplayBufferSamples if isinstance(self.obs_shape, dict) else ReplayBufferSamples)(
            observations=map_leaves(tensor, observation),
            actions=tensor(columns.take(ring.action, slots)),
            next_observations=map_leaves(tensor, following_observation),
            dones=tensor(replay_tags.terminated(tag).astype(np.float32).reshape(-1, 1)),
            rewards=tensor(reward),
            **discounts,
        )

    def _rewards(self, slots: np.ndarray, env: VecNormalize | None) -> Any:
        reward = columns.take(self.ring.reward, slots)
        # n-step sums are NumPy's, and so is what VecNormalize takes.
        return reward if env is None and self.n_steps == 1 else self._normalize_reward(columns.to_host(reward), env)

    @property
    def _tensor(self) -> Callable[[Any], Any]:
        """What makes an array that nobody else holds a tensor on `device`."""
        if self.device.type == "cpu" and isinstance(self.ring.reward, np.ndarray):
            return torch.from_numpy
        return functools.partial(columns.to_tensor, device=self.device)

    def _as_stored(self, name: str, observation: Any, lead: tuple[int, ...]) -> Any:
        names: list[str] = list(self.obs_shape) if isinstance(self.obs_shape, dict) else []
        if names and not (isinstance(observation, dict) and observation.keys() >= set(names)):
            came = list(observation) if isinstance(observation, dict) else type(observation).__name__
            raise ValueError(f"{name} must be a dict of {names}, got {came}.")
        return map_leaves(lambda shape, leaf: shaped(name, leaf, (*lead, *shape)), self.obs_shape, observation)

    def flush(self) -> None:
        """Put all that is stored on the disk, if it is in files: it is there again whatever happens to the process."""
        self.ring.storage.flush(self.ring)

    def close(self) -> None:
        """Flush, and let others open the folder. Of no use afterwards; without files it does nothing."""
        storage = self.ring.storage
        if isinstance(storage, MemoryMapped):
            self.flush()
            storage.close()
            self.ring = Closed(storage.path)  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        # Of files their folder: they may hold more than memory.
        self.flush()
        state = self.__dict__.copy()
        if isinstance(self.ring.storage, MemoryMapped):
            state["_path"], state["_ring"] = self.ring.storage.path, None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["_ring"] is None:
            self.ring = open_ring(state["_path"]) or self._make_ring()
            if self.alpha is not None:  # what the files hold may be another state by now
                self.priorities = Priorities(self.ring, self.alpha)

    def reset(self) -> None:
        """Forget all that is stored."""
        self.ring.reset()
        if self.alpha is not None:
            self.priorities = Priorities(self.ring, self.alpha)

    # These three are known of what a program has, too, which is not brought back for them.

    def size(self) -> int:
        """How many rows are stored: transitions of each environment."""
        return self.ring.size if self._lent is None else int(self._lent.size)

    @property
    def pos(self) -> int:  # type: ignore[override]
        """The row that is written next."""
        # One that has not as many rows as this has not gone round.
        return self.ring.position if self._lent is None else int(self._lent.position)

    @property
    def full(self) -> Any:  # type: ignore[override]
        """Whether every row is stored."""
        return self.size() == self.buffer_size

    @property
    def observations(self) -> Any:  # type: ignore[override]
        """(buffer_size, n_envs, *shape), as stored, or a dict of such: not a copy."""
        return self.ring.observation

    @property
    def actions(self) -> Any:  # type: ignore[override]
        """(buffer_size, n_envs, action_dim), as stored: not a copy."""
        return self.ring.action

    @property
    def rewards(self) -> Any:  # type: ignore[override]
        """(buffer_size, n_envs), as stored: not a copy."""
        return self.ring.reward

    @property
    def next_observations(self) -> Any:  # type: ignore[override]
        """What each slot led to, as SB3's attribute, made anew at every call."""
        slots = np.arange(self.ring.num_slots)
        following = transitions.next_observations(self.ring, slots, transitions.tags(self.ring, slots))
        return map_leaves(lambda leaf: leaf.reshape(self.buffer_size, self.n_envs, *leaf.shape[1:]), following)

    @property
    def dones(self) -> Any:  # type: ignore[override]
        """(buffer_size, n_envs), float32, whether an episode ended, made anew at every call."""
        return replay_tags.is_end(self.ring.tag).astype(np.float32)

    @property
    def timeouts(self) -> Any:  # type: ignore[override]
        """(buffer_size, n_envs), float32, whether it ended in no terminal state, made anew at every call."""
        tag = self.ring.tag
        return (replay_tags.is_end(tag) & ~replay_tags.terminated(tag)).astype(np.float32)
