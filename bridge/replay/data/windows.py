"""Windows of a ring: contiguous slots of one environment within one episode, sampled in a time independent of its size.

A window of `length` slots is identified by its last one, and exists if and only if the age of that slot, counted from
what is stored, is at least length - 1. So two look-ups show whether it exists, also across wrap-arounds and in running
episodes. Uniform sampling draws slots, and draws again where a slot ends no window. Only if hardly any slot does, the
trajectories are listed, once for the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bridge.replay.store.ring import Ring
from bridge.replay.store.transitions import tags
from jaxenvs.learn.off_policy.store import replay_tags

# Windows as two arrays: their last slots, and their lengths.
Windows = tuple[np.ndarray, np.ndarray]

# Slots are drawn again in at most ROUNDS rounds of at most MOST_AT_ONCE slots, before the trajectories are listed.
ROUNDS, MOST_AT_ONCE = 4, 65536


def episode_steps(ring: Ring, slots: np.ndarray) -> np.ndarray:
    """Return the ages of slots; 0 for an end in the oldest row, whose age is lost with the row before it."""
    before = tags(ring, (slots - ring.num_envs) % ring.num_slots)
    before = np.where(slots // ring.num_envs == ring.oldest, np.int32(-1), before)
    age: np.ndarray = replay_tags.age(tags(ring, slots), before)
    return age


def ages(ring: Ring, slots: np.ndarray) -> np.ndarray:
    """Return how many stored slots of the same episode come before each slot."""
    stored: np.ndarray = np.minimum(episode_steps(ring, slots), (slots // ring.num_envs - ring.oldest) % ring.capacity)
    return stored


def trajectories(ring: Ring) -> Windows:
    """Return the stored part of every episode, including running ones."""
    rows = np.arange(min(ring.num_ended, len(ring.end_slot)))
    ended = ring.end_slot[rows[ring.alive_ends(rows)]]
    ended = ended[(ended // ring.num_envs - ring.oldest) % ring.capacity < ring.size]
    newest = ring.newest * ring.num_envs + np.arange(ring.num_envs)
    last = np.concatenate([ended, newest[~replay_tags.is_end(tags(ring, newest))]])
    return last, ages(ring, last) + 1


def draw(ring: Ring, number: int, length: int, by: str, strict: bool, replace: bool) -> Windows:
    """Sample windows of `length` slots from a ring that is not empty, with NumPy's global generator.

    Args:
      ring, number, length: what to sample.
      by, replace: as in ReplayBuffer.sample_slices.
      strict: if False, a trajectory with fewer than `length` slots is a window too, the only one that it has.

    Raises:
      ValueError: there is no window, or without replacement fewer than `number`.
    """
    draw_some = _of_windows if by == "window" else _of_trajectories
    if replace:
        return draw_some(ring, number, length, strict)
    return distinct(
        lambda: draw_some(ring, number, length, strict), lambda: _choose(ring, number, length, by, strict), number
    )


def _of_windows(ring: Ring, number: int, length: int, strict: bool) -> Windows:
    stored, first = ring.size * ring.num_envs, ring.oldest * ring.num_envs

    def candidates(count: int) -> Windows:
        last = (np.random.randint(0, stored, count) + first) % ring.num_slots  # noqa: NPY002
        age = ages(ring, last)
        there = age >= length - 1
        if not strict:
            there |= replay_tags.is_end(tags(ring, last)) | (last // ring.num_envs == ring.newest)
        return last[there], np.minimum(age[there] + 1, length)

    def listed(count: int) -> Windows:
        last, size, windows = _listed(ring, length, strict)
        total = np.cumsum(windows)
        return _nth(ring, last, size, windows, total, np.random.randint(0, total[-1], count), length)  # noqa: NPY002

    return draw_again(number, candidates, listed)


def _of_trajectories(ring: Ring, number: int, length: int, strict: bool) -> Windows:
    num_rows = min(ring.num_ended, len(ring.end_slot))
    newest = ring.newest * ring.num_envs

    def candidates(count: int) -> Windows:
        row = np.random.randint(0, num_rows + ring.num_envs, count)  # noqa: NPY002
        is_ended, index = row < num_rows, np.maximum(row - num_rows, 0)
        row = np.where(is_ended, row, 0)
        last = np.where(is_ended, ring.end_slot[row], newest + index)
        there = np.where(is_ended, ring.alive_ends(row), ~replay_tags.is_end(tags(ring, last)))
        there &= (last // ring.num_envs - ring.oldest) % ring.capacity < ring.size
        last, size = last[there], ages(ring, last[there]) + 1
        enough = slice(None) if not strict else size >= length
        return within(last[enough], size[enough])

    def within(last: np.ndarray, size: np.ndarray) -> Windows:
        offset = np.random.randint(0, np.maximum(size - length, 0) + 1)  # noqa: NPY002
        return (last - offset * ring.num_envs) % ring.num_slots, np.minimum(size, length)

    def listed(count: int) -> Windows:
        last, size, _ = _listed(ring, length, strict)
        which = np.random.randint(0, len(last), count)  # noqa: NPY002
        return within(last[which], size[which])

    return draw_again(number, candidates, listed)


def draw_again(number: int, candidates: Callable[[int], Windows], listed: Callable[[int], Windows]) -> Windows:
    """Return `number` windows: from candidates while it pays to draw them, and the rest from a list of all.

    Args:
      candidates: tries as often as its argument says to draw a window; returns the windows that it found.
      listed: draws as many windows as its argument says from a list of all.
    """
    # A few more than needed, so that most batches need no second round.
    parts, missing, count = [], number, number + number // 16 + 4
    for _ in range(ROUNDS):
        last, size = candidates(count)
        parts.append((last[:missing], size[:missing]))
        missing -= len(parts[-1][0])
        if missing == 0:
            break
        share = max(len(last), 1) / count
        count = min(int(1.2 * missing / share) + 8, MOST_AT_ONCE)
    else:
        parts.append(listed(missing))
    if len(parts) == 1:
        return parts[0]
    last, size = (np.concatenate(column) for column in zip(*parts))
    return last, size


def _listed(ring: Ring, length: int, strict: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the trajectories that have windows: their last slots, their lengths, and their numbers of windows."""
    last, size = trajectories(ring)
    there = size >= (length if strict else 1)
    if not there.any():
        raise ValueError(
            f"slice_len must be at most {size.max()}, the length of the longest stored piece of an episode, got "
            f"{length}."
        )
    last, size = last[there], size[there]
    return last, size, np.maximum(size - length, 0) + 1


def _nth(
    ring: Ring, last: np.ndarray, size: np.ndarray, windows: np.ndarray, total: np.ndarray, n: np.ndarray, length: int
) -> Windows:
    """Return the windows of these numbers, counted through the trajectories."""
    which = np.searchsorted(total, n, side="right")
    offset = n - (total - windows)[which]
    return (last[which] - offset * ring.num_envs) % ring.num_slots, np.minimum(size[which], length)


def distinct(draw_some: Callable[[], Windows], choose: Callable[[], Windows], number: int) -> Windows:
    """Return `number` different windows: from draws while these find new ones, else chosen from a list of all windows.

    Args:
      draw_some: draws `number` windows, with replacement.
      choose: draws `number` windows from a list of all, without replacement.
    """
    last, size = np.zeros(0, np.int64), np.zeros(0, np.int64)
    while len(last) < number:
        new_last, new_size = draw_some()
        last, size = np.concatenate([last, new_last]), np.concatenate([size, new_size])
        first = np.sort(np.unique(last, return_index=True)[1])
        if len(first) - (len(last) - number) < max(number // 8, 1) and len(first) < number:
            return choose()
        last, size = last[first], size[first]
    return last[:number], size[:number]


def _choose(ring: Ring, number: int, length: int, by: str, strict: bool) -> Windows:
    last, size, windows = _listed(ring, length, strict)
    total = np.cumsum(windows)
    if total[-1] < number:
        raise ValueError(
            f"Without replacement, num_slices must be at most {total[-1]}, the number of stored windows of {length} "
            f"steps, got {number}."
        )
    likely = None if by == "window" else np.repeat(1 / (len(windows) * windows), windows)
    n = np.random.choice(total[-1], number, replace=False, p=likely)  # noqa: NPY002
    return _nth(ring, last, size, windows, total, n, length)
