"""PrioritizedReplayBuffer: sampling in proportion to priorities in a sum tree (Schaul et al. 2016)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.vec_env import VecNormalize

from bridge.replay import columns, windows
from bridge.replay.episode_index import Episodes
from bridge.replay.replay_buffer import ReplayBuffer

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


class PrioritizedSamples(NamedTuple):
    """Samples with the fields of SB3's, for either kind of observations, and weights and indices.

    Attributes:
      weights: (batch_size, 1), importance weights, the greatest of which is 1.
      indices: (batch_size,), for `update_priorities`.
    """

    observations: torch.Tensor | TensorDict
    actions: torch.Tensor
    next_observations: torch.Tensor | TensorDict
    dones: torch.Tensor
    rewards: torch.Tensor
    weights: torch.Tensor
    indices: torch.Tensor
    discounts: torch.Tensor | None = None


class PrioritizedReplayBuffer(ReplayBuffer):
    """Replay buffer that samples in proportion to priorities (Schaul et al. 2016, https://arxiv.org/abs/1511.05952).

    Use it to sample transitions with large temporal-difference errors more often. DQN, SAC, TD3 and DDPG weigh its
    samples, and set priorities to the errors that they compute. Its data may be in files; priorities are in memory.
    """

    saved_as = None

    def __init__(self, *args: Any, alpha: float = 0.6, beta: float = 0.4, **kwargs: Any) -> None:
        """Allocate the arrays, or open the files, and start with equal priorities.

        Args:
          args, kwargs: the arguments of ReplayBuffer.
          alpha: samples are drawn in proportion to priority ** alpha. New transitions have the greatest priority so
            far, and `update_priorities` sets other ones.
          beta: the exponent of importance weights, an attribute that may be changed during training.
        """
        if not alpha >= 0:
            raise ValueError(f"alpha must be at least 0, got {alpha!r}.")
        self.alpha, self.beta = alpha, beta
        super().__init__(*args, **kwargs)
        self._forget()

    def _forget(self) -> None:
        """Give all that is stored the same priority."""
        super()._forget()
        self._tree, self._greatest = SumTree(self.buffer_size * self.n_envs), 1.0
        # Rows with this number or a later one have no priority in the tree yet.
        self._in_tree = self.num_added() - self.stored()[1]

    @property
    def priorities(self) -> SumTree:
        """The priorities of slots, to the power of `alpha`. Rows added since the last call get the greatest so far."""
        added = self.num_added()
        new, self._in_tree = min(added - self._in_tree, self.buffer_size), added
        value = self._greatest**self.alpha
        for row, _ in columns.pieces((self.pos - new) % self.buffer_size, new, self.buffer_size):
            self._tree.set_range(row.start * self.n_envs, row.stop * self.n_envs, value)
        if self.optimize_memory_usage and self.full:  # the newest next observation is in the oldest row
            self._tree.set_range(self.pos * self.n_envs, (self.pos + 1) * self.n_envs, 0)
        return self._tree

    def why_not_on_device(self) -> str | None:
        """Return why the data cannot move to the device for compiled functions."""
        return "it has priorities"

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Sample transitions in proportion to their priorities, with replacement.

        Args:
          batch_size: the number of transitions.
          env: normalizes observations and rewards.

        Returns:
          PrioritizedSamples: SB3's samples with `weights` and `indices`.

        Raises:
          ValueError: nothing is stored, or all priorities are 0.
        """
        self._require_stored("sample")
        slots = self._draw(batch_size)
        found, weights = self._transitions(slots, env)._asdict(), self._weights(self._tree.leaves[slots])
        return PrioritizedSamples(**found, weights=weights, indices=self._tensor(slots))

    def update_priorities(self, indices: ArrayLike, priorities: ArrayLike) -> None:
        """Set the priorities of transitions, such as the absolute values of their temporal-difference errors.

        Args:
          indices: the `indices` of samples. If a transition was overwritten since, the new one at its place is meant.
            Ignored are -1, where a slice has no step, and what is not stored any more, as after a `reset`.
          priorities: an array of the same shape, 0 or more.

        Raises:
          ValueError: a priority or an index is out of its range. Nothing changed.
        """
        slots, new = columns.as_numpy(indices), columns.as_numpy(priorities).astype(np.float64)
        if new.shape == (*slots.shape, 1):  # the shape of losses
            new = new[..., 0]
        if slots.shape != new.shape:
            raise ValueError(f"priorities must have the shape {slots.shape} of indices, got {new.shape}.")
        if not (np.isfinite(new) & (new >= 0)).all():
            raise ValueError(f"priorities must be finite and at least 0, got {new.min()} to {new.max()}.")
        if slots.size and (slots.min() < -1 or slots.max() >= self.buffer_size * self.n_envs):
            raise ValueError(f"indices must be the indices of samples, got {slots.min()} to {slots.max()}.")
        tree, (oldest, size) = self.priorities, self.stored()
        stored = (slots >= 0) & ((slots // self.n_envs - oldest) % self.buffer_size < size)
        slots, new = slots[stored], new[stored]
        if len(slots):
            self._greatest = max(self._greatest, float(new.max()))
            tree.set(slots, new**self.alpha)

    def _draw(self, number: int) -> np.ndarray:
        """Sample `number` slots."""
        tree = self.priorities
        if not tree.total > 0:
            raise ValueError("priorities must not all be 0: set a positive one with update_priorities before sampling.")
        return tree.draw(number)

    def _weights(self, likely: np.ndarray) -> torch.Tensor:
        """Return importance weights of samples drawn in proportion to `likely`, (num, 1); the greatest weight is 1."""
        weights: np.ndarray = ((likely.min() / likely) ** self.beta).astype(np.float32)
        return self._tensor(weights[:, None])  # the shape of rewards and dones, or their product would be (num, num)

    def _draw_windows(
        self, episodes: Episodes, num_slices: int, slice_len: int, by: str, strict_length: bool, replace: bool
    ) -> tuple[windows.Windows, torch.Tensor]:
        """Sample in proportion to the sums of the priorities of a window's steps.

        A slot is drawn, and its position in the window; if there is no such window, both are drawn again.
        """
        if by != "window" or not strict_length:
            raise ValueError("With priorities, sample_slices needs by='window' and strict_length=True.")
        num_envs, num_slots = episodes.num_envs, episodes.num_slots

        def candidates(count: int) -> windows.Windows:
            slots = self._draw(count)
            behind = np.random.randint(0, slice_len, count)  # noqa: NPY002
            there = (episodes.newest - slots // num_envs) % episodes.capacity >= behind
            last = (slots[there] + behind[there] * num_envs) % num_slots
            last = last[episodes.ages(last) >= slice_len - 1]
            return last, np.full(len(last), slice_len)

        def listed(count: int, replace: bool = True) -> windows.Windows:
            slots = (episodes.oldest * num_envs + np.arange(episodes.size * num_envs)) % num_slots
            last = slots[episodes.ages(slots) >= slice_len - 1]
            if not len(last):
                return windows.draw(episodes, count, slice_len, "window", True, True)  # raises ValueError
            likely = self._sums(episodes, last, slice_len)
            if (count_positive := int((likely > 0).sum())) < (1 if replace else count):
                raise ValueError(
                    f"num_slices must be at most {count_positive}, the number of stored windows of {slice_len} steps "
                    f"with a positive priority, got {count}."
                )
            return np.random.choice(last, count, replace, likely / likely.sum()), np.full(count, slice_len)  # noqa: NPY002

        def some() -> windows.Windows:
            return windows.draw_again(num_slices, candidates, listed)

        drawn = some() if replace else windows.distinct(some, lambda: listed(num_slices, False), num_slices)
        return drawn, self._weights(self._sums(episodes, drawn[0], slice_len))

    def _sums(self, episodes: Episodes, last: np.ndarray, length: int) -> np.ndarray:
        total = np.zeros(len(last))
        for back in range(length):
            total += self._tree.leaves[(last - back * episodes.num_envs) % episodes.num_slots]
        return total
