"""RingReplayBuffer: SB3's replay buffers for all kinds of observations, also for compiled functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.utils import get_device
from stable_baselines3.common.vec_env import VecNormalize

from bridge.replay.store import columns, device_store, transitions
from bridge.replay.store.attributes import SB3Attributes
from bridge.replay.store.columns import map_leaves, shaped
from bridge.replay.store.ring import InMemory, Ring
from bridge.replay.store.waiting_steps import WaitingSteps
from bridge.sb3 import Space
from jaxenvs.arguments import integer
from jaxenvs.learn import Replay
from jaxenvs.learn.interfaces import Arrays
from jaxenvs.learn.off_policy.store import replay_tags


class RingReplayBuffer(SB3Attributes):
    """Base class of bridge's replay buffers: SB3's ReplayBuffer, DictReplayBuffer and NStepReplayBuffer in one.

    It samples the transitions that SB3's buffers sample from the same seed of NumPy's global generator. Each
    observation is always stored once: `optimize_memory_usage` has no effect, and `handle_timeout_termination` can be
    combined with it, unlike in SB3.

    The data is either on the host or on the device for compiled functions, never in both: see `to_device`.
    """

    # The ring on the host; None if the data is in the store on the device.
    _ring: Ring | None = None
    # For the store on the device: when this number of episodes had ended, there was space for this many more.
    _counted = (0, 0)
    # Compiled functions may replace the methods of a class with this attribute in its own body, but not of subclasses.
    is_known = True

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
    ) -> None:
        """Allocate the arrays.

        Args:
          buffer_size: the number of transitions, of all environments together; at least one of each is stored.
          observation_space, action_space: of the environments.
          device: where samples are.
          n_envs: the number of environments.
          optimize_memory_usage: ignored, as observations are always stored once.
          handle_timeout_termination: whether an episode that a time limit ended (`TimeLimit.truncated` of its info)
            counts as not terminated.
          n_steps: the number of rewards that are summed, discounted by `gamma`, as in SB3's NStepReplayBuffer.
          gamma: the discount of n-step returns.

        Raises:
          ValueError: an argument is out of its range.
        """
        for name, value in (("buffer_size", buffer_size), ("n_envs", n_envs), ("n_steps", n_steps)):
            integer(name, value, 1, None, "a positive int")
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
        self._ring = self._make_ring()

    def _make_ring(self) -> Ring:
        return Ring.allocate(self.buffer_size, self.n_envs, *self._parts(), InMemory())

    def _parts(self) -> tuple[Any, tuple[tuple[int, ...], Any]]:
        """Return shape and dtype of an observation, or a dict of them, and of an action, as the ring stores them."""
        observation = map_leaves(lambda shape, space: (shape, space.dtype), self.obs_shape, self.observation_space)
        return observation, ((self.action_dim,), self._maybe_cast_dtype(self.action_space.dtype))

    # --- Storing --------------------------------------------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Store one step of every environment, as SB3's buffers do.

        Args:
          obs, next_obs, action, reward, done: with the leading axis n_envs. If an episode ended, `next_obs` is its last
            observation, not the first one of the next episode.
          infos: an info of each environment, read only where an episode ended.

        Raises:
          ValueError: an argument has another shape. Nothing changed.
        """
        n_envs = self.n_envs
        obs, next_obs = self._as_stored("obs", obs, (n_envs,)), self._as_stored("next_obs", next_obs, (n_envs,))
        action = shaped("action", action, (n_envs, self.action_dim))
        reward, done = shaped("reward", reward, (n_envs,)), shaped("done", done, (n_envs,))
        ends = None
        if np.count_nonzero(done) if type(done) is np.ndarray else done.any():  # `any` takes longer
            env_indices = np.flatnonzero(done)
            timeout = np.zeros(len(env_indices), bool)
            if self.handle_timeout_termination:
                timeout[:] = [bool(infos[index].get("TimeLimit.truncated")) for index in env_indices.tolist()]
            ends = (env_indices, ~timeout, timeout)
        self.ring_on_host().append(obs, action, reward, next_obs, ends)
        self._written(1)

    def extend(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Store several steps one after the other, as in SB3: `add` with a leading axis of steps in each argument.

        Raises:
          TypeError: `infos` is not a list of infos, as for a rollout of arrays, which `add_rollout` stores. Nothing
            changed.
          ValueError: arguments have different numbers of steps. Nothing changed.
        """
        if hasattr(infos, "dtype") or isinstance(infos, dict):
            raise TypeError(
                f"infos must be a list with one entry for each step, as add takes it, got a {type(infos).__name__}. "
                "To store a rollout of arrays, call add_rollout."
            )
        given = {"obs": obs, "next_obs": next_obs, "action": action, "reward": reward, "done": done}
        for name, values in given.items():
            if any(len(leaf) != len(infos) for leaf in columns.leaves(values)):
                raise ValueError(f"{name} must have as many steps as infos, {len(infos)}.")
        for step, info in enumerate(infos):
            self.add(**{name: columns.at(values, step) for name, values in given.items()}, infos=info)

    def add_rollout(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminated: Any,
        truncated: Any,
        final_observations: Any,
    ) -> None:
        """Store a whole rollout of all environments at once.

        The arrays are torch tensors, NumPy or JAX arrays; those on the host are read without an intermediate copy.

        Args:
          observations, actions, rewards, terminated, truncated: with the leading axes (n_steps, n_envs). An episode may
            be both terminated and truncated.
          final_observations: with the same axes, the observation after each step, before any reset. They are read only
            where an episode ends, and in the last step.

        Raises:
          ValueError: an argument has another shape. Nothing changed.
        """
        steps = len(rewards)
        lead = (steps, self.n_envs)
        if not steps:
            return
        self.ring_on_host().extend(
            self._as_stored("observations", columns.concrete(observations), lead),
            shaped("actions", columns.concrete(actions), (*lead, self.action_dim)),
            shaped("rewards", columns.concrete(rewards), lead),
            shaped("terminated", columns.to_host(terminated), lead).astype(bool),
            shaped("truncated", columns.to_host(truncated), lead).astype(bool),
            self._as_stored("final_observations", columns.concrete(final_observations), lead),
        )
        self._written(steps)

    def _written(self, rows: int) -> None:
        """Update what depends on the ring, called after `rows` rows were written."""

    def reset(self) -> None:
        """Delete all that is stored."""
        if self._device_store is None and self._ring is None:
            self._is_lost, self._ring = False, self._make_ring()
        self.ring_on_host().reset()

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
        ring = self._stored_ring("sample")
        rows = np.random.randint(0, ring.size, size=batch_size)  # noqa: NPY002
        if ring.size < ring.capacity:
            rows = (rows + ring.oldest) % ring.capacity
        return self._get_samples(rows, env)

    def _stored_ring(self, method: str) -> Ring:
        ring = self.ring_on_host()
        if ring.size == 0:
            raise ValueError(f"{method} needs at least one stored transition, but the replay buffer is empty.")
        return ring

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        slots = batch_inds
        if self.n_envs > 1:
            env_indices = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))  # noqa: NPY002
            slots = batch_inds * self.n_envs + env_indices
        return self._transitions(slots, env)

    def _transitions(self, slots: np.ndarray, env: VecNormalize | None) -> Any:
        ring, last, discounts = self.ring_on_host(), slots, {}
        if self.n_steps == 1:
            reward = self._rewards(slots, env).reshape(-1, 1)
        else:
            following, count = transitions.n_step(ring, slots, self.n_steps)
            last = following[np.arange(len(slots)), count - 1]
            counts = np.arange(self.n_steps) < count[:, None]
            # In the order of SB3's operations, so that the results are bitwise SB3's.
            decay = self.gamma ** np.arange(self.n_steps, dtype=np.float32).reshape(1, -1)
            reward = (self._rewards(following, env) * decay * counts).sum(axis=1, keepdims=True)
            discounts["discounts"] = self._tensor(self.gamma ** count[:, None].astype(np.float32))
        tag = transitions.tags(ring, last)
        observation = transitions.observations(ring, slots)
        following_observation = transitions.next_observations(ring, last, tag)
        return self._samples(slots, tag, observation, following_observation, reward, env, **discounts)

    def _rewards(self, slots: np.ndarray, env: VecNormalize | None) -> Any:
        return self._normalize_reward(columns.take(self.ring_on_host().reward, slots), env)

    def _samples(
        self, slots: np.ndarray, tag: np.ndarray, observation: Any, following: Any, reward: Any, env: Any, **more: Any
    ) -> Any:
        """Return SB3's samples, with normalized observations; rewards are normalized already."""
        tensor = self._tensor
        return (DictReplayBufferSamples if isinstance(self.obs_shape, dict) else ReplayBufferSamples)(
            observations=map_leaves(tensor, self._normalize_obs(observation, env)),
            actions=tensor(columns.take(self.ring_on_host().action, slots)),
            next_observations=map_leaves(tensor, self._normalize_obs(following, env)),
            dones=tensor(replay_tags.terminated(tag).astype(np.float32).reshape(-1, 1)),
            rewards=tensor(reward),
            **more,
        )

    @property
    def _tensor(self) -> Callable[[Any], Any]:
        """Function that makes a tensor on `device` of an array without other references, whose memory it may share."""
        if self.device.type == "cpu":
            return torch.from_numpy
        return functools.partial(columns.to_tensor, device=self.device)

    def _as_stored(self, name: str, observation: Any, lead: tuple[int, ...]) -> Any:
        if not isinstance(self.obs_shape, dict):
            return shaped(name, observation, (*lead, *self.obs_shape))
        names: list[str] = list(self.obs_shape)
        if not (isinstance(observation, dict) and observation.keys() >= set(names)):
            came = list(observation) if isinstance(observation, dict) else type(observation).__name__
            raise ValueError(f"{name} must be a dict with the keys {names}, got {came}.")
        return map_leaves(lambda shape, leaf: shaped(name, leaf, (*lead, *shape)), self.obs_shape, observation)

    # --- Data on the device ---------------------------------------------------------------------------------------

    def ring_on_host(self) -> Ring:
        """Return what is stored, in memory on the host.

        If it is on the device, everything is copied to the host, and the next compiled function copies it to the device
        again.

        Raises:
          RuntimeError: a compiled function was interrupted, and the data is lost: see `keep_on_device`.
        """
        if self._device_store is not None:
            store, self._device_store = self._device_store, None
            action_dtype = self._parts()[1][1]
            spaces = self.obs_shape, self.observation_space, action_dtype
            try:
                self._ring = device_store.to_host(store, *spaces, self.buffer_size)
            except BaseException:
                self.keep_on_device(store)
                raise
        if self._is_lost or self._ring is None:
            raise RuntimeError(
                "The contents of the replay buffer are lost, because an exception (such as one of a signal handler) "
                "interrupted a compiled function that was updating them. Load the buffer again with "
                "load_replay_buffer, or call its reset() to continue with an empty one."
            )
        return self._ring

    def why_not_on_device(self) -> str | None:
        """Return why the data cannot move to the device for compiled functions; None if it can.

        It depends on the class; the function of this name also checks the class itself.
        """
        return None if self.handle_timeout_termination else "handle_timeout_termination is False"

    def to_device(self, observation: Arrays, num_steps: int, mesh: Mesh | None = None) -> Replay:
        """Return what is stored as a store on the device, for a compiled function. Pass its result to `keep_on_device`.

        Args:
          observation: the observations from which the environments continue. Where it is not the newest row's next
            observation, that episode is truncated.
          num_steps: the most rows that are written before the next call.
          mesh: devices, each of which gets a store for its environments, with a leading axis of devices.
        """
        observation = self._as_stored("observation", observation, (self.n_envs,))
        store = self._device_store
        if store is not None:
            continues = all(
                np.array_equal(np.asarray(last).reshape(now.shape), now)
                for now, last in columns.pairs(observation, store.last_observation)
            )
            has_rows = store.capacity == self.buffer_size or store.capacity > self.size() + num_steps
            parts = len(store.tag) if device_store.is_divided(store) else None
            if parts == (None if mesh is None else mesh.size) and continues and has_rows and self._has_ends(store):
                return store
        ring = self.ring_on_host()
        ring.break_off(observation)
        store = device_store.to_device(ring, self.observation_space, self.action_space, num_steps)
        self._ring = None
        if mesh is not None:
            store = device_store.divide(store, mesh)
        num_ended = np.asarray(store.num_ended)
        self._counted = int(num_ended.sum()), store.num_ends - int(num_ended.max())
        self._device_store = store  # also kept here until a compiled function takes it, as an exception may come before
        return store

    def keep_on_device(self, replay: Replay, waiting: WaitingSteps | None = None) -> None:
        """Keep the store that a compiled function returned; nothing is copied until the data is read on the host.

        If a compiled function was interrupted after it had taken the arrays, the buffer has lost its data: its methods
        raise a RuntimeError that says so, until `reset`.
        """
        self._is_lost = any(leaf.is_deleted() for leaf in jax.tree.leaves(replay) if isinstance(leaf, jax.Array))
        self._ring, self._device_store = None, None if self._is_lost else replay
        self._waiting = None if self._is_lost else waiting

    @property
    def is_on_device(self) -> bool:
        """True if the data is in the store on the device."""
        return self._newest_store is not None

    def add_on_device(self, most: int, *step: Any) -> None:
        """Store one step of all environments, the arguments of `Replay.add`, where the data is on the device.

        Args:
          most: how many steps may wait until a compiled function writes them.
        """
        if self._waiting is None or self._waiting.is_full:
            store = self._device_store
            assert store is not None
            self._waiting = WaitingSteps(store, most)
        self._waiting.append(*step)

    def to_device_with_steps(self, observation: Arrays, num_steps: int, most: int) -> tuple[Replay, WaitingSteps]:
        """Return the store as `to_device` does, and at most `most` steps that the compiled function has to write."""
        if (waiting := self._waiting) is None or not waiting.continue_from(observation):
            replay = self.to_device(observation, num_steps)
            return replay, WaitingSteps(replay, most)
        assert self._newest_store is not None
        return self._newest_store, waiting

    def episodes_left(self, replay: Replay) -> int:
        """Return how many episodes may end in a compiled function that stops then, without losing rows.

        After that, the side ring has no space for more ends, and rows would be dropped.

        Args:
          replay: the store on the device.
        """
        if replay.num_ends >= replay.capacity * replay.num_envs:
            return 2**31 - 1
        num_ended, free = self._counted
        # All environments may end an episode in the step in which the last of these ends.
        return free - (int(np.asarray(replay.num_ended).sum()) - num_ended) - (self.n_envs - 1)

    def _has_ends(self, store: Replay) -> bool:
        """Return whether enough of the side ring is free to make a call of a compiled function worthwhile."""
        wanted = max(store.num_ends // 4 - self.n_envs, 1)
        if self.episodes_left(store) < wanted:
            self._counted = int(np.asarray(store.num_ended).sum()), int(device_store.free_ends(store))
        return self.episodes_left(store) >= wanted

    def __getstate__(self) -> dict[str, Any]:
        self.ring_on_host()
        return self.__dict__.copy()
