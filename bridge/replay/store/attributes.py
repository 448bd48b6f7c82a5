"""The attributes of SB3's replay buffers, for a ring that stores observations once: to read, write and replace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common import buffers

from bridge.replay.store import edits, views
from bridge.replay.store.ring import Ring
from bridge.replay.store.views import ColumnView, SlotView, Views
from bridge.replay.store.waiting_steps import WaitingSteps
from jaxenvs.arguments import integer
from jaxenvs.learn import Replay


def _replaceable(read: Callable[[Any], Any]) -> Any:
    """Make a property; what is assigned to it is written into the array or view that it returns."""
    return property(read, lambda self, values: self._replace(read.__name__, values))


class SB3Attributes(buffers.ReplayBuffer):
    """Base class with the arrays and counters of SB3's ReplayBuffer, for a ring, on the host or on the device.

    Writes into the arrays are stored, and they can be replaced. All but `actions` and `rewards` are views: see
    `bridge.replay.store.views`. A view made earlier shows what is stored later, as SB3's arrays do. `actions` and
    `rewards` are arrays that become stale when a compiled function runs: read the attribute again afterwards.
    """

    # The store on the device, and steps that it does not have yet.
    _newest_store: Replay | None = None
    _waiting: WaitingSteps | None = None
    # Both the store and the ring are None, because a compiled function has taken the arrays and was interrupted before
    # it returned them.
    _is_lost = False

    @property
    def _device_store(self) -> Replay | None:
        """Store on the device, with all steps; None if the data is on the host."""
        store, waiting = self._newest_store, self._waiting
        if waiting is not None and store is not None:
            self._newest_store = self._waiting = None
            try:
                self._newest_store = waiting.written_to(store)
            except BaseException:
                self.keep_on_device(store, waiting)  # type: ignore[attr-defined]
                raise
        return self._newest_store

    @_device_store.setter
    def _device_store(self, store: Replay | None) -> None:
        self._newest_store, self._waiting = store, None

    def ring_on_host(self) -> Ring:
        """Return what is stored, in memory on the host."""
        raise NotImplementedError

    def _moved(self) -> None:
        """Update what depends on the ring, called after other rows became the stored ones."""

    # These three are known without copying data from the device.

    def size(self) -> int:
        """Return how many rows are stored, which is the number of each environment's transitions."""
        return (
            self.ring_on_host().size if self._device_store is None else int(np.asarray(self._device_store.size).min())
        )

    @property
    def pos(self) -> int:
        """Row that is written next; setting it makes the rows before it (if full, all rows) the stored ones."""
        # With fewer rows than the buffer, a store on the device has not wrapped around.
        return (
            self.ring_on_host().position
            if self._device_store is None
            else int(np.asarray(self._device_store.position).min())
        )

    @pos.setter
    def pos(self, row: int) -> None:
        # It may equal the capacity for a moment, in code that adds 1 and then checks it.
        integer("pos", row, 0, self.buffer_size, "a non-negative int")
        edits.move(self.ring_on_host(), int(row), self.buffer_size if self.full else int(row))
        self._moved()

    @property
    def full(self) -> Any:
        """True if every row is stored. Setting it to False keeps the rows before `pos`."""
        return self.size() == self.buffer_size

    @full.setter
    def full(self, is_full: Any) -> None:
        if bool(is_full) != self.full:
            edits.move(self.ring_on_host(), self.pos, self.buffer_size if is_full else self.pos % self.buffer_size)
            self._moved()

    @_replaceable
    def observations(self) -> Any:
        """Observations as stored, (buffer_size, n_envs, *shape), or a dict of such; not a copy."""
        return self._of_parts(self._column)

    @_replaceable
    def next_observations(self) -> Any:
        """Next observations of all slots, (buffer_size, n_envs, *shape), or a dict of such."""
        return self._of_parts(self._next)

    @_replaceable
    def actions(self) -> Any:
        """Actions as stored, (buffer_size, n_envs, action_dim); not a copy."""
        return self.ring_on_host().action

    @_replaceable
    def rewards(self) -> Any:
        """Rewards as stored, (buffer_size, n_envs); not a copy."""
        return self.ring_on_host().reward

    @_replaceable
    def dones(self) -> Any:
        """1 where an episode ended, else 0: float32 (buffer_size, n_envs)."""
        return self._flags(edits.dones, edits.write_dones)

    @_replaceable
    def timeouts(self) -> Any:
        """1 where an episode ended, but not in a terminal state, else 0: float32 (buffer_size, n_envs)."""
        return self._flags(edits.timeouts, edits.write_timeouts)

    # Views refer to the buffer, not to its ring, which may be replaced later.

    def _flags(self, read: Callable[..., Any], write: Callable[..., Any]) -> SlotView:
        return SlotView(
            views.outline((self.buffer_size, self.n_envs), np.float32),
            lambda slots: read(self.ring_on_host(), slots).astype(np.float32),
            lambda slots, values: write(self.ring_on_host(), slots, values),
        )

    def _of_parts(self, view: Callable[[str | None], Any]) -> Any:
        """Return the view of each part of Dict observations, or the only view."""
        if isinstance(self.observation_space, spaces.Dict):
            return Views({name: view(name) for name in self.ring_on_host().observation})
        return view(None)

    def _column(self, name: str | None) -> ColumnView:
        return ColumnView(
            lambda: _part(self.ring_on_host().observation, name),
            lambda slots: edits.keep_next_observations(self.ring_on_host(), slots),
        )

    def _next(self, name: str | None) -> SlotView:
        last = _part(self.ring_on_host().last_observation, name)
        return SlotView(
            views.outline((self.buffer_size, *last.shape), last.dtype),
            lambda slots: _part(edits.next_observations(self.ring_on_host(), slots), name),
            functools.partial(self._write_next, name),
        )

    def _write_next(self, name: str | None, slots: np.ndarray, values: np.ndarray) -> None:
        edits.write_next_observations(self.ring_on_host(), slots, name, values)

    def _replace(self, name: str, values: Any) -> None:
        mine = getattr(self, name)
        if not isinstance(mine, dict):
            views.replace(name, mine, values)
            return
        if not isinstance(values, dict) or values.keys() != mine.keys():
            raise ValueError(f"{name} must be a dict with the keys {list(mine)}, got {values!r:.100}.")
        for part in mine:
            views.replace(f"{name}[{part!r}]", mine[part], values[part])


def _part(observation: Any, name: str | None) -> Any:
    return observation if name is None else observation[name]


def is_known(buffer: Any) -> bool:
    """Return whether a replay buffer is exactly one of bridge's classes: a subclass may override anything."""
    return isinstance(buffer, SB3Attributes) and "is_known" in vars(type(buffer))


def why_not_on_device(buffer: Any) -> str | None:
    """Return why a buffer's data cannot move to the device for compiled functions, as a sentence; None if it can."""
    if not is_known(buffer):
        return (
            f"The replay buffer is a {type(buffer).__name__}, and only jaxenvs.sb3.ReplayBuffer and its kind are "
            "compiled."
        )
    reason = buffer.why_not_on_device()
    return None if reason is None else f"The replay buffer stays on the host: {reason}."
