"""Ring: the arrays of a replay buffer, whose slots each have a tag that says where episodes begin and end."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bridge.replay.store import columns
from bridge.replay.store.columns import map_leaves, pairs
from jaxenvs.learn.off_policy.store import replay_tags

# The first number of rows of the side ring, which doubles as often as needed.
FIRST_ENDS = 64
# Arrays of at most this size are compared faster as bytes.
FEW_BYTES = 4096
NONE = np.zeros(0, np.int64)


class InMemory:
    """Storage of a ring's arrays in memory, and the interface of other storages."""

    def allocate(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of zeros for the column `name`."""
        return np.zeros(shape, dtype)

    def reserve(self, ring: Ring, rows: int) -> None:
        """Prepare, before the next `rows` rows are written."""

    def edited(self) -> None:
        """Take note that tags were changed other than by writing the next rows."""

    def flush(self, ring: Ring) -> None:
        """Make all that is stored safe."""


@dataclasses.dataclass(eq=False)
class Ring:
    """A ring of `capacity` rows, each with one slot for every environment, made of given or allocated arrays.

    An observation is stored once. A slot's next observation is the observation of its environment in the next row; for
    the newest row, it is in `last_observation`; and if the slot ends an episode, its final observation is in the side
    ring of ends.

    Attributes:
      observation: an array (capacity, num_envs, *shape), or a dict of them.
      action: (capacity, num_envs, *shape).
      reward: (capacity, num_envs), float32.
      tag: (capacity, num_envs), int32, always a NumPy array: `jaxenvs.learn.off_policy.store.replay_tags`.
      last_observation: (num_envs, *shape), NumPy arrays: the newest row's next observations.
      end_observation: (num_ends, *shape), final observations, written in turn.
      end_slot: (num_ends,), row * num_envs + environment of the slot that ends so; a row is in use if that slot's tag
        names it.
      position: the row written next; `capacity` is row 0.
      size: how many rows are stored: those before `position`.
      num_ended: episode ends written so far; the next goes to the row `num_ended % num_ends`.
      storage: allocates arrays when the side ring grows.
      not_done: (capacity, num_envs), bools, slots with SB3's `timeouts` and without its `dones`; None if there are
        none.
      has_old_ages: True if tags were written by hand and ages are not updated yet: see `count_ages`.
    """

    observation: Any
    action: Any
    reward: Any
    tag: np.ndarray
    last_observation: Any
    end_observation: Any
    end_slot: np.ndarray
    storage: InMemory = dataclasses.field(default_factory=InMemory)
    position: int = 0
    size: int = 0
    num_ended: int = 0
    not_done: np.ndarray | None = None
    has_old_ages: bool = False

    @classmethod
    def allocate(
        cls,
        capacity: int,
        num_envs: int,
        observation: Any,
        action: tuple[tuple[int, ...], Any],
        storage: InMemory,
        num_ends: int = FIRST_ENDS,
    ) -> Ring:
        """Return an empty ring, given (shape, dtype) of one observation, or a dict of them, and of one action."""

        def of_observations(column: str, *lead: int) -> Any:
            if isinstance(observation, dict):
                return {
                    name: storage.allocate(f"{column}.{name}", (*lead, *shape), dtype)
                    for name, (shape, dtype) in observation.items()
                }
            shape, dtype = observation
            return storage.allocate(column, (*lead, *shape), dtype)

        lead = (capacity, num_envs)
        return cls(
            observation=of_observations("observation", *lead),
            action=storage.allocate("action", (*lead, *action[0]), action[1]),
            reward=storage.allocate("reward", lead, np.float32),
            tag=np.zeros(lead, np.int32),
            last_observation=map_leaves(lambda part: np.zeros((num_envs, *part[0]), part[1]), observation),
            end_observation=of_observations("end_observation", num_ends),
            end_slot=np.zeros(num_ends, np.int64),
            storage=storage,
        )

    @property
    def capacity(self) -> int:
        return int(self.tag.shape[0])

    @property
    def num_envs(self) -> Any:
        return self.tag.shape[1]

    @property
    def num_slots(self) -> int:
        return self.tag.size

    @property
    def oldest(self) -> Any:
        """The row of the oldest stored slots."""
        return (self.position - self.size) % self.capacity

    @property
    def newest(self) -> Any:
        """The row written last."""
        return (self.position - 1) % self.capacity

    def append(self, observation: Any, action: Any, reward: Any, next_observation: Any, ends: Any = None) -> None:
        """Write one row.

        Args:
          observation, action, reward, next_observation: arrays with the leading axis num_envs. If an episode ends, the
            next observation is its final one.
          ends: (environment, terminated, truncated) where episodes end, three arrays; or None.
        """
        self.position %= self.capacity
        broken = self._broken_off(observation)
        self.reserve_ends(len(broken) + (len(ends[0]) if ends else 0))
        self.storage.reserve(self, 1)
        self._break(broken)
        row, capacity, num_envs = self.position, *self.tag.shape
        # `replay_tags.next_age` in fewer operations, which take as long as the writes
        ages = np.minimum(np.maximum(self.tag[row - 1] + 1, 0), replay_tags.MAX_AGE) if self.size else 0
        # Until all is written, the row does not count as stored, whatever interrupts.
        self.size = min(self.size, capacity - 1)
        for column, values in pairs(self.observation, observation):
            columns.write(column, row, values)
        columns.write(self.action, row, action)
        columns.write(self.reward, row, reward)
        self.tag[row] = ages
        if self.not_done is not None:
            self.not_done[row] = False
        if ends:
            env_indices, terminated, truncated = ends
            final = columns.at(next_observation, env_indices)
            self.write_ends(row * num_envs + env_indices, final, terminated, truncated)
        for last, values in pairs(self.last_observation, next_observation):
            last[...] = values
        self.position = (row + 1) % capacity
        self.size += 1

    def extend(
        self, observation: Any, action: Any, reward: Any, terminated: np.ndarray, truncated: np.ndarray, final: Any
    ) -> None:
        """Write many rows.

        Args:
          observation, action, reward: arrays with the leading axes (rows, num_envs).
          terminated, truncated: (rows, num_envs), bools in NumPy arrays.
          final: observations with the same axes, the observation after each step, before any reset. They are read only
            where a slot ends an episode, and in the last row.
        """
        rows, ended = len(terminated), terminated | truncated
        self.position %= self.capacity
        broken = self._broken_off(columns.at(observation, 0))
        # If there are more rows than the ring has, only the last ones are stored.
        skipped = max(rows - self.capacity, 0)
        step, env_indices = np.nonzero(ended[skipped:])
        self.reserve_ends(len(broken) + len(step))
        self.storage.reserve(self, rows - skipped)
        self._break(broken)
        ages = _ages(ended, replay_tags.next_age(self.tag[self.newest]) if self.size else np.int32(0))
        self.size = min(self.size, self.capacity - (rows - skipped))
        begin = (self.position + skipped) % self.capacity
        split = min(skipped + self.capacity - begin, rows)
        for start, stop, at in ((skipped, split, begin), (split, rows, 0)):
            if start == stop:
                continue
            here, piece = slice(at, at + stop - start), slice(start, stop)
            for column, values in pairs(self.observation, observation):
                columns.write(column, here, values[piece])
            columns.write(self.action, here, action[piece])
            columns.write(self.reward, here, reward[piece])
            self.tag[here] = ages[piece]
            if self.not_done is not None:
                self.not_done[here] = False
        if len(step):
            slots = (begin + step) % self.capacity * self.num_envs + env_indices
            where = skipped + step, env_indices
            self.write_ends(slots, columns.at(final, where), terminated[where], truncated[where])
        for last, values in pairs(self.last_observation, final):
            last[...] = values[-1]
        self.position = (begin + rows - skipped) % self.capacity
        self.size += rows - skipped

    def reset(self) -> None:
        """Delete all that is stored."""
        self.tag[:] = 0
        self.position = self.size = self.num_ended = 0
        self.not_done, self.has_old_ages = None, False
        self.storage.flush(self)

    def break_off(self, observation: Any) -> None:
        """Truncate the episodes that do not continue with this observation, as `append` does first."""
        broken = self._broken_off(observation)
        self.reserve_ends(len(broken))
        self._break(broken)

    def _broken_off(self, observation: Any) -> np.ndarray:
        """Return the indices of the environments in which an episode was left without an end.

        There the new observation is not the newest slot's next observation, because the environments were reset by hand
        between two rows. SB3 need not know, as it stores both observations of a transition.
        """
        if not self.size:
            return NONE
        is_end, broken = replay_tags.is_end(self.tag[self.newest]), []
        some_ended = np.count_nonzero(is_end) > 0
        for last, now in pairs(self.last_observation, observation):
            now = np.asarray(now, last.dtype)  # cast as it will be stored
            # Next observations of ends are in the side ring and not read here. So in most steps, nothing differs.
            if some_ended:
                last[is_end] = now[is_end]
            if last.tobytes() == now.tobytes() if last.nbytes <= FEW_BYTES else (last == now).all():
                continue
            differs = columns.differs(last, now).reshape(self.num_envs, -1)
            broken.append(differs.any(axis=1).nonzero()[0])
        return np.unique(np.concatenate(broken)) if broken else NONE

    def end(self, env_indices: np.ndarray, is_terminal: bool) -> None:
        """Let the newest slots of some environments end their episodes, in a terminal state or by truncation."""
        running = env_indices[~replay_tags.is_end(self.tag[self.newest])[env_indices]]
        self.reserve_ends(len(running))
        self._break(running, is_terminal)

    def _break(self, env_indices: np.ndarray, is_terminal: bool = False) -> None:
        if len(env_indices):
            final = columns.at(self.last_observation, env_indices)
            terminated = np.full(len(env_indices), is_terminal)
            self.write_ends(self.newest * self.num_envs + env_indices, final, terminated, ~terminated)

    def write_ends(self, slots: np.ndarray, final: Any, terminated: np.ndarray, truncated: np.ndarray) -> None:
        first = self.num_ended % len(self.end_slot)
        rows = np.arange(first, first + len(slots), dtype=np.int32) % np.int32(len(self.end_slot))
        for column, values in pairs(self.end_observation, final):
            columns.write(column, rows, values)
        self.end_slot[rows] = slots
        self.tag.reshape(-1)[slots] = replay_tags.make_end(rows, terminated, truncated)
        self.num_ended += len(slots)

    def edited(self) -> None:
        """Take note that tags were written by hand."""
        self.has_old_ages = True
        self.storage.edited()

    def count_ages(self) -> None:
        """Recompute ages, on which windows depend, if tags were written by hand."""
        if not self.has_old_ages:
            return
        rows = (self.oldest + np.arange(self.size)) % self.capacity
        tag = self.tag[rows]
        is_end = replay_tags.is_end(tag)
        if self.size:
            self.tag[rows] = np.where(is_end, tag, _ages(is_end, np.maximum(tag[0], 0)))
        self.has_old_ages = False

    def alive_ends(self, rows: Any) -> Any:
        """Return which rows of the side ring are still named by a slot's tag."""
        tag = self.tag.reshape(-1)[self.end_slot[rows]]
        return replay_tags.is_end(tag) & (replay_tags.end_row(tag) == rows)

    def reserve_ends(self, count: int) -> None:
        """Enlarge the side ring if `count` more ends would overwrite an end that is still in use."""
        if count == 0:
            return
        num_ends = len(self.end_slot)
        if count <= num_ends and not self.alive_ends((self.num_ended + np.arange(count)) % num_ends).any():
            return
        rows = (self.num_ended + np.arange(num_ends)) % num_ends  # the oldest first
        rows = rows[self.alive_ends(rows)]
        wanted = max(2 * num_ends, len(rows) + count)
        if wanted > replay_tags.MAX_ENDS:
            raise MemoryError(f"A replay buffer can hold at most {replay_tags.MAX_ENDS} episodes, got {wanted}.")
        # Everything is allocated before anything is changed, because memory may run out.
        larger = self._allocate_ends(wanted)
        end_slot = np.zeros(wanted, np.int64)
        for new, old in pairs(larger, self.end_observation):
            columns.write(new, slice(0, len(rows)), columns.take_rows(old, rows))
        end_slot[: len(rows)] = slots = self.end_slot[rows]
        flat = self.tag.reshape(-1)
        moved = np.arange(len(rows), dtype=np.int32)
        flat[slots] = replay_tags.make_end(
            moved, replay_tags.terminated(flat[slots]), replay_tags.truncated(flat[slots])
        )
        self.end_observation, self.end_slot, self.num_ended = larger, end_slot, len(rows)

    def _allocate_ends(self, num_ends: int) -> Any:
        def like(name: str, column: Any) -> Any:
            return self.storage.allocate(name, (num_ends, *column.shape[1:]), column.dtype)

        if isinstance(self.end_observation, dict):
            return {name: like(f"end_observation.{name}", column) for name, column in self.end_observation.items()}
        return like("end_observation", self.end_observation)


def _ages(ended: np.ndarray, first: Any) -> np.ndarray:
    """Return the ages of rows of slots, ends included; the first row's ages are `first`."""
    step = np.arange(len(ended), dtype=np.int32)[:, None]
    # For each slot the step after the last end before it, and 0 if there was none.
    begin = np.zeros(ended.shape, np.int32)
    np.maximum.accumulate(np.where(ended[:-1], step[1:], 0), axis=0, out=begin[1:])
    ages = step - begin + np.where(begin == 0, first, np.int32(0))
    oldest: np.ndarray = np.minimum(ages, replay_tags.MAX_AGE, dtype=np.int32)
    return oldest
