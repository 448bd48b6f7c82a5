"""Prioritised draws, in proportion to priorities that are kept in a sum tree (Schaul et al. 2016)."""

from __future__ import annotations

import numpy as np

from bridge.replay.data import windows
from bridge.replay.store.ring import Ring

# Children of a node. A draw goes down few levels, and looks at all children of a node at once, which lie side by side.
WIDTH = 32


class SumTree:
    """Numbers, and draws in proportion to them.

    A node is the sum of its children, added up anew whenever one changes: in float64, and without the errors that
    differences would pile up.
    """

    def __init__(self, size: int) -> None:
        """
        Args:
          size: how many numbers; all are 0.
        """
        self.levels = []  # from the leaves to the root, each padded to whole nodes
        while True:
            size = -(-size // WIDTH)
            self.levels.append(np.zeros((size, WIDTH)))
            if size == 1:
                break

    @property
    def leaves(self) -> np.ndarray:
        """The numbers, and some zeros behind them."""
        return self.levels[0].reshape(-1)

    @property
    def total(self) -> float:
        """Their sum."""
        return float(self.levels[-1].sum())

    def set(self, index: np.ndarray, values: np.ndarray) -> None:
        """Change some. Of one that comes twice the last value counts."""
        self.leaves[index] = values
        for below, above in zip(self.levels, self.levels[1:]):
            index = np.unique(index // WIDTH)
            above.reshape(-1)[index] = below[index].sum(axis=1)

    def set_range(self, start: int, stop: int, value: float) -> None:
        """Change all from one to before another."""
        self.leaves[start:stop] = value
        for below, above in zip(self.levels, self.levels[1:]):
            start, stop = start // WIDTH, -(-stop // WIDTH)
            above.reshape(-1)[start:stop] = below[start:stop].sum(axis=1)

    def draw(self, number: int) -> np.ndarray:
        """Indices in proportion to the numbers, of which one must be positive, by NumPy's global generator."""
        target = np.random.random(number) * self.total  # noqa: NPY002
        node = np.zeros(number, np.int64)
        for level in reversed(self.levels):
            sums = level[node].cumsum(axis=1)
            # Below the sum of all, whatever rounding did, so that no child is chosen that is 0.
            target = np.minimum(target, np.nextafter(sums[:, -1], 0))
            child = (sums > target[:, None]).argmax(axis=1)
            before = np.where(child > 0, sums[np.arange(number), child - 1], 0)
            target, node = target - before, node * WIDTH + child
        return node


class Priorities:
    """The priorities of the slots of a ring.

    Attributes:
      tree: priorities to the power of `alpha`.
      greatest: the greatest priority so far, which new slots get.
    """

    def __init__(self, ring: Ring, alpha: float) -> None:
        """All slots that are stored get the same."""
        self.alpha, self.greatest = alpha, 1.0
        self.tree = SumTree(ring.num_slots)
        self.mark_written(ring, ring.size)

    def mark_written(self, ring: Ring, rows: int) -> None:
        """Give the slots of the rows written last the greatest priority."""
        rows, lanes, value = min(rows, ring.capacity), ring.num_envs, self.greatest**self.alpha
        start = ring.position - rows
        if start < 0:
            self.tree.set_range((start + ring.capacity) * lanes, ring.num_slots, value)
        self.tree.set_range(max(start, 0) * lanes, ring.position * lanes, value)

    def update(self, ring: Ring, slots: np.ndarray, priorities: np.ndarray) -> None:
        """Set the priorities of slots; but for -1, where a slice has no step, and for those that are no more stored.

        Raises:
          ValueError: one is negative or not finite, or there are not as many as slots. Nothing changed.
        """
        if slots.shape != priorities.shape:
            raise ValueError(f"priorities must have the shape {slots.shape} of indices, got {priorities.shape}.")
        if not (np.isfinite(priorities) & (priorities >= 0)).all():
            raise ValueError(f"priorities must be finite and at least 0, got {priorities.min()} to {priorities.max()}.")
        if slots.size and (slots.min() < -1 or slots.max() >= ring.num_slots):
            raise ValueError(f"indices must be the indices of samples, got {slots.min()} to {slots.max()}.")
        stored = (slots >= 0) & ((slots // ring.num_envs - ring.oldest) % ring.capacity < ring.size)
        slots, priorities = slots[stored], priorities[stored]
        if not len(slots):
            return
        self.greatest = max(self.greatest, float(priorities.max()))
        self.tree.set(slots, priorities**self.alpha)

    def draw(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """So many slots, and their priorities to the power of `alpha`.

        Raises:
          ValueError: all priorities are 0.
        """
        if not self.tree.total > 0:
            raise ValueError("priorities must not all be 0: set a positive one with update_priorities before sampling.")
        slots = self.tree.draw(number)
        return slots, self.tree.leaves[slots]

    def draw_windows(self, ring: Ring, number: int, length: int, replace: bool) -> tuple[windows.Windows, np.ndarray]:
        """So many windows in proportion to the priorities of their slots, added up; and these sums.

        A slot is drawn, and where in the window it is; what is no window is drawn anew.

        Raises:
          ValueError: as `windows.draw`, or there are not as many with a priority above 0.
        """

        def candidates(count: int) -> windows.Windows:
            slots, _ = self.draw(count)
            behind = np.random.randint(0, length, count)  # noqa: NPY002
            there = (ring.newest - slots // ring.num_envs) % ring.capacity >= behind
            last = (slots[there] + behind[there] * ring.num_envs) % ring.num_slots
            last = last[windows.ages(ring, last) >= length - 1]
            return last, np.full(len(last), length)

        def listed(count: int, replace: bool = True) -> windows.Windows:
            slots = (ring.oldest * ring.num_envs + np.arange(ring.size * ring.num_envs)) % ring.num_slots
            last = slots[windows.ages(ring, slots) >= length - 1]
            if not len(last):
                return windows.draw(ring, count, length, "window", True, True)  # which says that there is none
            likely = self._sums(ring, last, length)
            if (count_positive := int((likely > 0).sum())) < (1 if replace else count):
                raise ValueError(
                    f"num_slices must be at most {count_positive}, the number of stored windows of {length} steps "
                    f"with a positive priority, got {count}."
                )
            return np.random.choice(last, count, replace, likely / likely.sum()), np.full(count, length)  # noqa: NPY002

        def some() -> windows.Windows:
            return windows.draw_again(number, candidates, listed)

        drawn = some() if replace else windows.distinct(some, lambda: listed(number, False), number)
        return drawn, self._sums(ring, drawn[0], length)

    def _sums(self, ring: Ring, last: np.ndarray, length: int) -> np.ndarray:
        total = np.zeros(len(last))
        for back in range(length):
            total += self.tree.leaves[(last - back * ring.num_envs) % ring.num_slots]
        return total


def importance_weights(likely: np.ndarray, beta: float) -> np.ndarray:
    """Importance weights of a batch, the greatest of which is 1.

    Args:
      likely: what the samples were drawn in proportion to.
    """
    lightest: np.ndarray = (likely.min() / likely) ** beta
    return lightest.astype(np.float32)
