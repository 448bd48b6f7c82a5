"""What SB3's replay buffers have as attributes, of one that stores observations once: to read, write and replace."""

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
from jaxenvs.arguments import integer
from jaxenvs.learn import Replay


class SB3Attributes(buffers.ReplayBuffer):
    """The arrays and counters of SB3's ReplayBuffer, of a ring or of what a program has of it.

    What is written into the arrays is stored, and they can be replaced. All but `actions` and `rewards` are views: see
    `bridge.replay.store.views`. A view made earlier shows what is stored later, as SB3's arrays do. `actions` and
    `rewards` are arrays that a compiled function leaves behind: after one has run, read the attribute again.
    """

    _lent: Replay | None = None

    def take_ring(self) -> Ring:
        """Return what is stored, in memory."""
        raise NotImplementedError

    def _moved(self) -> None:
        """Called after other rows were made those that are stored."""

    # These three are known of what a program has, too, which is not brought back for them.

    def size(self) -> int:
        """How many rows are stored: transitions of each environment."""
        return self.take_ring().size if self._lent is None else int(np.asarray(self._lent.size).min())

    @property
    def pos(self) -> int:
        """The row that is written next. If it is set, the rows before it are stored, as with SB3's; if full, all."""
        # One that has not as many rows as this has not gone round.
        return self.take_ring().position if self._lent is None else int(np.asarray(self._lent.position).min())

    @pos.setter
    def pos(self, row: int) -> None:
        # As high as the capacity for a moment, by code that adds 1 and then looks.
        integer("pos", row, 0, self.buffer_size, "a non-negative int")
        edits.move(self.take_ring(), int(row), self.buffer_size if self.full else int(row))
        self._moved()

    @property
    def full(self) -> Any:
        """Whether every row is stored. If it is set to False, the rows before `pos` are."""
        return self.size() == self.buffer_size

    @full.setter
    def full(self, is_full: Any) -> None:
        if bool(is_full) != self.full:
            edits.move(self.take_ring(), self.pos, self.buffer_size if is_full else self.pos % self.buffer_size)
            self._moved()

    @property
    def observations(self) -> Any:
        """(buffer_size, n_envs, *shape), as stored, or a dict of such: not a copy."""
        return self._of_parts(self._column)

    @observations.setter
    def observations(self, values: Any) -> None:
        self._replace("observations", values)

    @property
    def next_observations(self) -> Any:
        """(buffer_size, n_envs, *shape), what each slot led to, or a dict of such."""
        return self._of_parts(self._next)

    @next_observations.setter
    def next_observations(self, values: Any) -> None:
        self._replace("next_observations", values)

    @property
    def actions(self) -> Any:
        """(buffer_size, n_envs, action_dim), as stored: not a copy."""
        return self.take_ring().action

    @actions.setter
    def actions(self, values: Any) -> None:
        self._replace("actions", values)

    @property
    def rewards(self) -> Any:
        """(buffer_size, n_envs), as stored: not a copy."""
        return self.take_ring().reward

    @rewards.setter
    def rewards(self, values: Any) -> None:
        self._replace("rewards", values)

    @property
    def dones(self) -> Any:
        """(buffer_size, n_envs), float32, whether an episode ended."""
        return self._flags(edits.dones, edits.write_dones)

    @dones.setter
    def dones(self, values: Any) -> None:
        self._replace("dones", values)

    @property
    def timeouts(self) -> Any:
        """(buffer_size, n_envs), float32, whether it ended in no terminal state."""
        return self._flags(edits.timeouts, edits.write_timeouts)

    @timeouts.setter
    def timeouts(self, values: Any) -> None:
        self._replace("timeouts", values)

    # Views hold the buffer, and not its ring, of which there may be another one later.

    def _flags(self, read: Callable[..., Any], write: Callable[..., Any]) -> SlotView:
        return SlotView(
            views.outline((self.buffer_size, self.n_envs), np.float32),
            lambda slots: read(self.take_ring(), slots).astype(np.float32),
            lambda slots, values: write(self.take_ring(), slots, values),
        )

    def _of_parts(self, view: Callable[[str | None], Any]) -> Any:
        """The view of each part of Dict observations, or the one that there is."""
        if isinstance(self.observation_space, spaces.Dict):
            return Views({name: view(name) for name in self.take_ring().observation})
        return view(None)

    def _column(self, name: str | None) -> ColumnView:
        return ColumnView(
            lambda: _part(self.take_ring().observation, name),
            lambda slots: edits.keep_next_observations(self.take_ring(), slots),
        )

    def _next(self, name: str | None) -> SlotView:
        last = _part(self.take_ring().last_observation, name)
        return SlotView(
            views.outline((self.buffer_size, *last.shape), last.dtype),
            lambda slots: _part(edits.next_observations(self.take_ring(), slots), name),
            functools.partial(self._write_next, name),
        )

    def _write_next(self, name: str | None, slots: np.ndarray, values: np.ndarray) -> None:
        edits.write_next_observations(self.take_ring(), slots, name, values)

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
