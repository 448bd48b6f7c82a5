"""Episodes: where episodes begin and end in the arrays of a replay buffer, for drawing slices.

Beside SB3's arrays there is one int32 column, the steps since the episode of a slot began, and a list of the slots that
end episodes. Both are made when slices are first drawn, and afterwards continued for the rows added since.
"""

from __future__ import annotations

import numpy as np

from bridge.replay import columns
from bridge.replay.rows import Rows

# Steps are not counted further: no slice is that long, and an int32 must hold them.
MOST_STEPS = 2**30


class Episodes:
    """Index of the episodes in a replay buffer. Slots are numbers, row * n_envs + environment.

    Attributes:
      steps: int32 (buffer_size, n_envs), the steps since the episode began.
      oldest: the oldest stored row.
      size: how many rows are stored.
      newest: the row written last.
    """

    def __init__(self, buffer: Rows) -> None:
        self.num_envs, self.capacity = buffer.n_envs, buffer.buffer_size
        self.num_slots = self.num_envs * self.capacity
        self.steps = np.zeros((self.capacity, self.num_envs), np.int32)
        self.oldest = self.size = 0
        self.newest = -1
        # The number of rows ever written of which the last ones are in `steps`.
        self._added = 0
        # The last slots of episodes that another one follows, in order, counted in the same way.
        self._ends, self._num_ends = np.zeros(64, np.int64), 0

    def update(self, buffer: Rows) -> None:
        """Continue with the rows that were added since the last call."""
        added = buffer.num_added()
        self.oldest, self.size = buffer.stored()
        self.newest = (buffer.pos - 1) % self.capacity
        first = max(self._added, added - self.size)
        for rows, numbers in columns.pieces(first % self.capacity, added - first, self.capacity):
            self._count(buffer, rows, first + numbers.start, first + numbers.start == added - self.size)
        self._added = added

    def _count(self, buffer: Rows, rows: slice, number: int, is_oldest: bool) -> None:
        """Count the steps in adjacent rows, of which the first has this number."""
        before = np.arange(rows.start - 1, rows.stop - 1)
        begins = (buffer.dones[before] != 0) | (buffer.timeouts[before] != 0)
        if not buffer.optimize_memory_usage:
            now, expected = columns.at(buffer.observations, rows), columns.at(buffer.next_observations, before)
            begins |= columns.differs(now, expected)
        begins[[reset - number for reset in buffer.resets if 0 <= reset - number < len(begins)]] = True
        if is_oldest:
            begins[0] = True
        step = np.arange(len(begins), dtype=np.int32)[:, None]
        last_begin = np.maximum.accumulate(np.where(begins, step, -1), axis=0)
        already = self.steps[rows.start - 1] + 1  # where the episode began before these rows
        steps = np.where(last_begin < 0, already + step, step - last_begin)
        self.steps[rows] = np.minimum(steps, MOST_STEPS)
        if is_oldest:
            begins[0] = False  # nothing ends before it
        row, env_indices = begins.nonzero()
        self._append((number + row - 1) * self.num_envs + env_indices, (number - self.size) * self.num_envs)

    def _append(self, ends: np.ndarray, oldest: int) -> None:
        if self._num_ends + len(ends) > len(self._ends):
            kept = self._ends[np.searchsorted(self._ends[: self._num_ends], oldest) : self._num_ends]
            self._ends, self._num_ends = np.zeros(2 * (len(kept) + len(ends)) + 64, np.int64), len(kept)
            self._ends[: len(kept)] = kept
        self._ends[self._num_ends : self._num_ends + len(ends)] = ends
        self._num_ends += len(ends)

    def ages(self, slots: np.ndarray) -> np.ndarray:
        """Return how many stored slots of the same episode come before each slot."""
        before = (slots // self.num_envs - self.oldest) % self.capacity
        return np.asarray(np.minimum(columns.take(self.steps, slots), before))

    def is_last(self, slots: np.ndarray) -> np.ndarray:
        """Return whether another episode follows after each slot. After the newest one, this is not known."""
        return np.asarray((columns.take(self.steps, slots + self.num_envs) == 0) & ~self.is_newest(slots))

    def is_newest(self, slots: np.ndarray) -> np.ndarray:
        """Return whether slots are in the row written last."""
        return np.asarray(slots // self.num_envs == self.newest)

    def last_slots(self) -> tuple[np.ndarray, int]:
        """Return the last slots of episodes that others follow, counted on and on, and the number of the first."""
        first = int(np.searchsorted(self._ends[: self._num_ends], (self._added - self.size) * self.num_envs))
        return self._ends[: self._num_ends], first

    def newest_slots(self) -> np.ndarray:
        """Return the newest slot of each environment."""
        return self.newest * self.num_envs + np.arange(self.num_envs)
