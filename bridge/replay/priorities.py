"""Prioritized sampling, in proportion to priorities that are kept in a sum tree (Schaul et al. 2016)."""

from __future__ import annotations

import numpy as np

from bridge.replay import columns, windows
from bridge.replay.episode_index import Episodes
from bridge.replay.rows import Rows

# Children of a node. A draw goes through few levels, and reads all children of a node at once, which are adjacent in
# memory.
WIDTH = 32


class SumTree:
    """Non-negative numbers, and sampling of indices in proportion to them.

    A node is the sum of its children, computed anew whenever one changes: in float64, and without the rounding errors
    that differences would accumulate.
    """

    def __init__(self, size: int) -> None:
        self.levels = []  # from the leaves to the root, each padded to whole nodes
        while True:
            size = -(-size // WIDTH)
            self.levels.append(np.zeros((size, WIDTH)))
            if size == 1:
                break

    @property
    def leaves(self) -> np.ndarray:
        """The numbers, followed by some zeros."""
        return self.levels[0].reshape(-1)

    @property
    def total(self) -> float:
        """The sum of the numbers."""
        return float(self.levels[-1].sum())

    def set(self, index: np.ndarray, values: np.ndarray) -> None:
        """Change the numbers at these indices. If an index occurs twice, its last value counts."""
        self.leaves[index] = values
        for below, above in zip(self.levels, self.levels[1:]):
            index = np.unique(index // WIDTH)
            above.reshape(-1)[index] = below[index].sum(axis=1)

    def set_range(self, start: int, stop: int, value: float) -> None:
        """Change all numbers from `start` to before `stop`."""
        self.leaves[start:stop] = value
        for below, above in zip(self.levels, self.levels[1:]):
            start, stop = start // WIDTH, -(-stop // WIDTH)
            above.reshape(-1)[start:stop] = below[start:stop].sum(axis=1)

    def draw(self, number: int) -> np.ndarray:
        """Return indices in proportion to the numbers, with NumPy's global generator. One number must be positive."""
        target = np.random.random(number) * self.total  # noqa: NPY002
        node = np.zeros(number, np.int64)
        for level in reversed(self.levels):
            sums = level[node].cumsum(axis=1)
            # Below the sum of all, whatever rounding did, so that no child with a sum of 0 is chosen.
            target = np.minimum(target, np.nextafter(sums[:, -1], 0))
            child = (sums > target[:, None]).argmax(axis=1)
            before = np.where(child > 0, sums[np.arange(number), child - 1], 0)
            target, node = target - before, node * WIDTH + child
        return node


class Priorities:
    """The priorities of the slots of a replay buffer, row * n_envs + environment.

    Attributes:
      tree: priorities to the power of `alpha`.
      greatest: the greatest priority so far, which new slots get.
    """

    def __init__(self, rows: Rows, alpha: float) -> None:
        """Give all stored slots the same priority."""
        self.alpha, self.greatest = alpha, 1.0
        self.tree = SumTree(rows.buffer_size * rows.n_envs)
        self._added = rows.num_added() - rows.stored()[1]
        self.mark_written(rows)

    def mark_written(self, rows: Rows) -> None:
        """Give the slots of all rows written since the last call the greatest priority."""
        added = rows.num_added()
        new, self._added = min(added - self._added, rows.buffer_size), added
        value = self.greatest**self.alpha
        for row, _ in columns.pieces((rows.pos - new) % rows.buffer_size, new, rows.buffer_size):
            self.tree.set_range(row.start * rows.n_envs, row.stop * rows.n_envs, value)

    def update(self, rows: Rows, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of slots, ignoring -1, where a slice has no step, and slots that are no longer stored."""
        if priorities.shape == (*slots.shape, 1):  # the shape of losses
            priorities = priorities[..., 0]
        if slots.shape != priorities.shape:
            raise ValueError(f"priorities must have the shape {slots.shape} of indices, got {priorities.shape}.")
        if not (np.isfinite(priorities) & (priorities >= 0)).all():
            raise ValueError(f"priorities must be finite and at least 0, got {priorities.min()} to {priorities.max()}.")
        if slots.size and (slots.min() < -1 or slots.max() >= rows.buffer_size * rows.n_envs):
            raise ValueError(f"indices must be the indices of samples, got {slots.min()} to {slots.max()}.")
        oldest, size = rows.stored()
        stored = (slots >= 0) & ((slots // rows.n_envs - oldest) % rows.buffer_size < size)
        slots, priorities = slots[stored], priorities[stored]
        if not len(slots):
            return
        self.greatest = max(self.greatest, float(priorities.max()))
        self.tree.set(slots, priorities**self.alpha)

    def draw(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Sample `number` slots; return them, and their priorities to the power of `alpha`."""
        if not self.tree.total > 0:
            raise ValueError("priorities must not all be 0: set a positive one with update_priorities before sampling.")
        slots = self.tree.draw(number)
        return slots, self.tree.leaves[slots]

    def draw_windows(
        self, episodes: Episodes, number: int, length: int, replace: bool
    ) -> tuple[windows.Windows, np.ndarray]:
        """Sample `number` windows in proportion to the sums of their slots' priorities; return them and these sums.

        A slot is drawn, and its position in the window; if there is no such window, both are drawn again.
        """
        num_envs, num_slots = episodes.num_envs, episodes.num_slots

        def candidates(count: int) -> windows.Windows:
            slots, _ = self.draw(count)
            behind = np.random.randint(0, length, count)  # noqa: NPY002
            there = (episodes.newest - slots // num_envs) % episodes.capacity >= behind
            last = (slots[there] + behind[there] * num_envs) % num_slots
            last = last[episodes.ages(last) >= length - 1]
            return last, np.full(len(last), length)

        def listed(count: int, replace: bool = True) -> windows.Windows:
            slots = (episodes.oldest * num_envs + np.arange(episodes.size * num_envs)) % num_slots
            last = slots[episodes.ages(slots) >= length - 1]
            if not len(last):
                return windows.draw(episodes, count, length, "window", True, True)  # raises ValueError
            likely = self._sums(episodes, last, length)
            if (count_positive := int((likely > 0).sum())) < (1 if replace else count):
                raise ValueError(
                    f"num_slices must be at most {count_positive}, the number of stored windows of {length} steps "
                    f"with a positive priority, got {count}."
                )
            return np.random.choice(last, count, replace, likely / likely.sum()), np.full(count, length)  # noqa: NPY002

        def some() -> windows.Windows:
            return windows.draw_again(number, candidates, listed)

        drawn = some() if replace else windows.distinct(some, lambda: listed(number, False), number)
        return drawn, self._sums(episodes, drawn[0], length)

    def _sums(self, episodes: Episodes, last: np.ndarray, length: int) -> np.ndarray:
        total = np.zeros(len(last))
        for back in range(length):
            total += self.tree.leaves[(last - back * episodes.num_envs) % episodes.num_slots]
        return total


def importance_weights(likely: np.ndarray, beta: float) -> np.ndarray:
    """Return importance weights of samples drawn in proportion to `likely`, (num, 1); the greatest weight is 1."""
    weights: np.ndarray = ((likely.min() / likely) ** beta).astype(np.float32)
    return weights[:, None]  # the shape of rewards, dones and losses, or their product would be (num, num)
