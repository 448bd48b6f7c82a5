"""Rows: SB3's replay arrays on the host, or the same rows in a store on the device while compiled functions run."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, TypeGuard

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import ArrayLike
from stable_baselines3.common import buffers

from bridge.replay import columns, device_store
from bridge.replay.columns import Observation, Observations, as_numpy, shaped, shaped_observation
from bridge.replay.waiting_steps import WaitingSteps
from bridge.sb3 import Infos
from jaxenvs.learn import Replay


class Array:
    """Array of a replay buffer that the object itself lacks, because the rows are on the device, or files are closed.

    Reading it moves all rows to the host. Python prefers an attribute of the object, so an array there costs nothing; a
    `__getattr__` would make `add` a tenth slower.
    """

    def __set_name__(self, owner: type[Rows], name: str) -> None:
        self.name = name
        owner.ARRAYS = (*owner.ARRAYS, name)

    def __get__(self, rows: Rows | None, owner: type[Rows]) -> Any:
        if rows is None:
            return None
        if rows._files is not None:
            rows._files.require_open()
        if not rows.is_on_device:
            raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}")
        rows.to_host()
        return vars(rows)[self.name]


class Rows(buffers.ReplayBuffer):
    """Base class of our replay buffers: SB3's arrays, which compiled functions can take to the device.

    The rows are either in SB3's arrays or in the store on the device, never in both. While they are on the device, the
    arrays are no attributes of the object: reading one moves all rows to the host, and the next compiled function moves
    them to the device again, with what your code has written into the arrays meanwhile.
    """

    # SB3's class whose arrays these are, and the one as which `save_replay_buffer` pickles the buffer, if there is one.
    _sb3s: Any = buffers.ReplayBuffer
    saved_as: ClassVar[type[buffers.ReplayBuffer] | None] = None
    # The Files of a ReplayBuffer whose arrays are in files.
    _files: Any = None
    ARRAYS: ClassVar[tuple[str, ...]] = ()
    observations = Array()
    next_observations = Array()
    actions = Array()
    rewards = Array()
    dones = Array()
    timeouts = Array()

    # Rows ever written, as `num_added` says, and the numbers of the rows before which the environments were reset by
    # hand.
    _added = 0
    resets: tuple[int, ...] = ()
    # The number of the oldest row that was not dropped when files were opened.
    _first = 0
    # The store on the device, its devices, and steps that it does not have yet.
    _store: Replay | None = None
    _mesh: Mesh | None = None
    _waiting: WaitingSteps | None = None

    # --- Storing --------------------------------------------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: np.ndarray, done: np.ndarray, infos: Infos) -> None:
        """Store one step of every environment, as SB3's buffers do."""
        if self._files is not None:
            self._files.reserve(1)
        self._sb3s.add(self, obs, next_obs, action, reward, done, infos)
        self._added += 1

    def add_rollout(
        self,
        observations: Observations,
        actions: ArrayLike,
        rewards: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        final_observations: Observations,
        final_only: bool = True,
    ) -> None:
        """Store a whole rollout of all environments at once.

        The arrays are torch tensors, NumPy or JAX arrays; those on the host are read without an intermediate copy.

        Args:
          observations, actions, rewards, terminated, truncated: with the leading axes (n_steps, n_envs). An episode
            that is both terminated and truncated counts as terminated, as in SB3.
          final_observations: with the same axes, the observation after each step, before any reset. They are read only
            where an episode ends, and in the last step.
          final_only: if False, they are read in all steps.

        Raises:
          ValueError: an argument has another shape. Nothing changed.
        """
        reward = as_numpy(rewards)
        if not (steps := len(reward)):
            return
        lead = (steps, self.n_envs)
        before = shaped_observation("observations", observations, lead, self.obs_shape)
        action = shaped("actions", actions, (*lead, self.action_dim))
        reward = shaped("rewards", reward, lead)
        is_terminal = shaped("terminated", terminated, lead).astype(bool)
        timeout = shaped("truncated", truncated, lead).astype(bool) & ~is_terminal
        final = shaped_observation("final_observations", final_observations, lead, self.obs_shape)
        done = is_terminal | timeout
        is_final = done | (not final_only)
        is_final[-1] = True

        def following(now: np.ndarray, last: np.ndarray) -> np.ndarray:
            after = np.concatenate([now[1:], last[-1:]])
            after[is_final] = last[is_final]
            return after

        self._write_rows(before, columns.map_leaves(following, before, final), action, reward, done, timeout)

    def _write_rows(
        self, before: Observation, after: Observation, action: np.ndarray, reward: np.ndarray, done: np.ndarray,
        timeout: np.ndarray,
    ) -> None:  # fmt: skip
        """Write rows: arguments with the leading axes (rows, n_envs). Of more rows than there are, the last remain."""
        steps = len(reward)
        skipped = max(steps - self.buffer_size, 0)
        if self._files is not None:
            self._files.reserve(steps - skipped)
        for rows, numbers in columns.pieces((self.pos + skipped) % self.buffer_size, steps - skipped, self.buffer_size):
            given = slice(skipped + numbers.start, skipped + numbers.stop)
            columns.write(self.observations, rows, columns.at(before, given))
            if not self.optimize_memory_usage:
                columns.write(self.next_observations, rows, columns.at(after, given))
            self.actions[rows], self.rewards[rows], self.dones[rows] = action[given], reward[given], done[given]
            if self.handle_timeout_termination:
                self.timeouts[rows] = timeout[given]
        self.num_added()  # which counts anew if `pos` was moved
        self._count(steps)
        if self.optimize_memory_usage:
            self.observations[self.pos] = columns.at(after, -1)

    def _count(self, num_new: int) -> None:
        """Count rows that were written, other than by `add`."""
        self._added += num_new
        self.full = self.full or self.pos + num_new >= self.buffer_size
        self.pos = (self.pos + num_new) % self.buffer_size

    def mark_reset(self) -> None:
        """Note that the environments were reset by hand: the next row begins an episode, whatever its observation."""
        if self.size():
            oldest = self.num_added() - self.size()
            self.resets = (*(each for each in self.resets if each >= oldest), self._added)

    def num_added(self) -> int:
        """Return how many rows were ever written; counted anew if your code has moved `pos` since."""
        if self._is_moved():
            self._added, self.resets, self._first = self.pos + self.buffer_size * bool(self.full), (), 0
            self._forget()
        return self._added

    def _is_moved(self) -> bool:
        """Return whether your code has set `pos` or `full`."""
        return self._added % self.buffer_size != self.pos or (self._added >= self.buffer_size) != self.full

    def _forget(self) -> None:
        """Delete what was computed from the rows, called when other rows became the stored ones."""

    def stored(self) -> tuple[int, int]:
        """Return the oldest row, and how many rows are stored and may be drawn."""
        self.num_added()
        first, size = (self.pos, self.buffer_size) if self.full else (0, self.pos)
        lost = self._num_dropped()
        if self.optimize_memory_usage and self.full:
            lost = max(lost, 1)  # as in SB3: the newest next observation is where the oldest observation was
        return (first + lost) % self.buffer_size, size - lost

    def size(self) -> int:
        """Return how many rows are stored, which is the number of each environment's transitions."""
        return super().size() - self._num_dropped()

    def _num_dropped(self) -> int:
        return max(self._first - max(self._added - self.buffer_size, 0), 0) if self._first else 0

    def reset(self) -> None:
        """Delete all that is stored."""
        if self.is_on_device:
            self._store = self._waiting = None
            self._allocate()
        super().reset()
        self._added, self.resets, self._first = 0, (), 0
        self._forget()

    def _allocate(self) -> None:
        """Make new arrays of zeros, with the constructor of SB3's class."""
        names = list(inspect.signature(self._sb3s.__init__).parameters)[1:]
        given = {name: getattr(self, name) for name in names}
        self._sb3s.__init__(self, **given | {"buffer_size": self.buffer_size * self.n_envs})

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, with the rows on the host and without what is computed from them."""
        if self.is_on_device:
            self.to_host()
        state = vars(self).copy()
        for name in ("_episodes", "_store", "_waiting", "_mesh"):
            state.pop(name, None)
        return state

    # --- On the device --------------------------------------------------------------------------------------------

    @property
    def is_on_device(self) -> bool:
        """True if the rows are in the store on the device."""
        return self._store is not None

    def why_not_on_device(self) -> str | None:
        """Return why the data cannot move to the device for compiled functions; None if it can.

        It depends on the class; the function of this name also checks the class itself.
        """
        return None if self.handle_timeout_termination else "handle_timeout_termination is False"

    def _kept_store(self) -> Replay:
        """Return the store on the device, without steps that wait.

        Raises:
          RuntimeError: a compiled function took it, and was interrupted before it returned it.
        """
        assert self._store is not None
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(self._store)):
            raise RuntimeError(
                "The contents of the replay buffer are lost, because an exception (such as one of a signal handler) "
                "interrupted a compiled function that was updating them. Load the buffer again with "
                "load_replay_buffer, or call its reset() to continue with an empty one."
            )
        return self._store

    def _written_store(self) -> Replay:
        """Return the store on the device, with all steps."""
        store = self._kept_store()
        if self._waiting is not None:
            self._store = store = self._waiting.written_to(store)
            self._waiting = None
        return store

    def to_host(self) -> None:
        """Move the rows from the device into SB3's arrays. What your code has set meanwhile remains."""
        found = self._download(self._written_store())
        self._store = None
        vars(self).update(found | vars(self))

    def _download(self, store: Replay) -> dict[str, object]:
        """Return SB3's arrays with the content of a store, which is deleted or lives in them."""
        return device_store.to_host(store, self)

    def _upload(self, num_steps: int, mesh: Mesh | None) -> Replay:
        """Return a store with the content of SB3's arrays, most of which are taken from the object."""
        return device_store.to_device(self, num_steps, mesh)

    def to_device(self, num_steps: int, mesh: Mesh | None = None) -> Replay:
        """Return the rows as a store on the device, for a compiled function. Pass its result to `keep_on_device`.

        Until then the buffer keeps the store itself, in case that the function raises an exception before it takes it.

        Args:
          num_steps: the most rows that are written before the next call.
          mesh: devices, each of which gets the rows of its environments.
        """
        if self.is_on_device:
            store = self._written_store()
            has_rows = store.capacity == self.buffer_size or store.capacity > self.size() + num_steps
            if has_rows and self._mesh == mesh and not self._is_set():
                return store
            self.to_host()
        self.num_added()
        store = self._upload(num_steps, mesh)
        for name in self.ARRAYS:
            vars(self).pop(name, None)
        self._store, self._mesh = store, mesh
        return store

    def _is_set(self) -> bool:
        """Return whether your code has set the counters or arrays while the rows are on the device."""
        return self._is_moved() or any(name in vars(self) for name in self.ARRAYS)

    def keep_on_device(self, replay: Replay, num_new: int = 0) -> None:
        """Keep the store that a compiled function returned; nothing is copied until an array is read on the host.

        If a compiled function was interrupted after it had taken the arrays, the buffer has lost its data: reading it
        raises a RuntimeError that says so, until `reset`.

        Args:
          num_new: how many rows the function has written, without steps that had waited.
        """
        self._store, self._waiting = replay, None
        self._count(num_new)

    def add_on_device(self, most: int, *step: object) -> None:
        """Store one step of all environments, the arguments of `Replay.add`, where the data is on the device.

        Args:
          most: how many steps may wait until a compiled function writes them.
        """
        if self._waiting is None or self._waiting.is_full:
            self._waiting = WaitingSteps(self._written_store(), most)
        self._waiting.append(*step)
        self._count(1)

    def to_device_with_steps(self, num_steps: int, most: int) -> tuple[Replay, WaitingSteps]:
        """Return the store as `to_device` does, and at most `most` steps that the compiled function has to write."""
        if self._waiting is None or self._is_set():
            replay = self.to_device(num_steps)
            return replay, WaitingSteps(replay, most)
        return self._kept_store(), self._waiting


def is_known(buffer: object) -> TypeGuard[Rows]:
    """Return whether a replay buffer is exactly one of bridge's classes: a subclass may override anything."""
    return isinstance(buffer, Rows) and type(buffer).__module__.startswith("bridge.replay.")


def as_sb3s(buffer: Any) -> Any:
    """Return a replay buffer as an object of SB3's class with its arrays, for pickling, if SB3 has such a class."""
    theirs = buffer.saved_as if is_known(buffer) and buffer._files is None else None
    if theirs is None or (getattr(buffer, "n_steps", 1) > 1 and isinstance(buffer.obs_shape, dict)):
        return buffer
    made = object.__new__(theirs)
    vars(made).update(buffer.__getstate__() | ({"env": None} if "env" in vars(buffer) else {}))
    return made


def why_not_on_device(buffer: object) -> str | None:
    """Return why a buffer's data cannot move to the device for compiled functions, as a sentence; None if it can."""
    if not is_known(buffer):
        return (
            f"The replay buffer is a {type(buffer).__name__}, and only jaxenvs.sb3.ReplayBuffer and its kind are "
            "compiled."
        )
    reason = buffer.why_not_on_device()
    return None if reason is None else f"The replay buffer stays on the host: {reason}."
