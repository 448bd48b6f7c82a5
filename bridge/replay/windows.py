"""Windows of a ring: contiguous slots of one environment within one episode, sampled in a time independent of its size.

A window of `length` slots is identified by its last one, and exists if and only if the age of that slot, counted from
what is stored, is at least length - 1. So two look-ups show whether it exists, also across wrap-arounds and in running
episodes. Uniform sampling draws slots, and draws again where a slot ends no window. Only if hardly any slot does, the
trajectories are listed, once for the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bridge.replay.episode_index import Episodes

# Windows as two arrays: their last slots, and their lengths.
Windows = tuple[np.ndarray, np.ndarray]

# Slots are drawn again in at most ROUNDS rounds of at most MOST_AT_ONCE slots, before the trajectories are listed.
ROUNDS, MOST_AT_ONCE = 4, 65536


def trajectories(episodes: Episodes) -> Windows:
    """Return the stored part of every episode, including running ones."""
    ends, first = episodes.last_slots()
    last = np.concatenate([ends[first:] % episodes.num_slots, episodes.newest_slots()])
    return last, episodes.ages(last) + 1


def draw(episodes: Episodes, number: int, length: int, by: str, strict: bool, replace: bool) -> Windows:
    """Sample windows of `length` slots from an index that is not empty, with NumPy's global generator.

    Args:
      episodes, number, length: what to sample.
      by, replace: as in ReplayBuffer.sample_slices.
      strict: if False, a trajectory with fewer than `length` slots is a window too, the only one that it has.

    Raises:
      ValueError: there is no window, or without replacement fewer than `number`.
    """
    draw_some = _of_windows if by == "window" else _of_trajectories
    if replace:
        return draw_some(episodes, number, length, strict)
    given = number, length
    return distinct(lambda: draw_some(episodes, *given, strict), lambda: _choose(episodes, *given, by, strict), number)


def _of_windows(episodes: Episodes, number: int, length: int, strict: bool) -> Windows:
    stored, first = episodes.size * episodes.num_envs, episodes.oldest * episodes.num_envs

    def candidates(count: int) -> Windows:
        last = (np.random.randint(0, stored, count) + first) % episodes.num_slots  # noqa: NPY002
        age = episodes.ages(last)
        there = age >= length - 1
        if not strict:
            there |= episodes.is_last(last) | episodes.is_newest(last)
        return last[there], np.minimum(age[there] + 1, length)

    def listed(count: int) -> Windows:
        found = _listed(episodes, length, strict)
        return _nth(episodes, found, np.random.randint(0, found[2].sum(), count), length)  # noqa: NPY002

    return draw_again(number, candidates, listed)


def _of_trajectories(episodes: Episodes, number: int, length: int, strict: bool) -> Windows:
    ends, first = episodes.last_slots()
    num_ended, newest = len(ends) - first, episodes.newest_slots()

    def candidates(count: int) -> Windows:
        index = np.random.randint(0, num_ended + len(newest), count)  # noqa: NPY002
        # So a list of all, which takes longer, is only made if need be.
        is_ended = index < num_ended
        last = newest[np.maximum(index - num_ended, 0)]
        last[is_ended] = ends[first + index[is_ended]] % episodes.num_slots
        size = episodes.ages(last) + 1
        enough = slice(None) if not strict else size >= length
        return within(last[enough], size[enough])

    def within(last: np.ndarray, size: np.ndarray) -> Windows:
        offset = np.random.randint(0, np.maximum(size - length, 0) + 1)  # noqa: NPY002
        return (last - offset * episodes.num_envs) % episodes.num_slots, np.minimum(size, length)

    def listed(count: int) -> Windows:
        last, size, _ = _listed(episodes, length, strict)
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


def _listed(episodes: Episodes, length: int, strict: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the trajectories that have windows: their last slots, their lengths, and their numbers of windows."""
    last, size = trajectories(episodes)
    there = size >= (length if strict else 1)
    if not there.any():
        raise ValueError(
            f"slice_len must be at most {size.max()}, the length of the longest stored piece of an episode, got "
            f"{length}."
        )
    last, size = last[there], size[there]
    return last, size, np.maximum(size - length, 0) + 1


def _nth(episodes: Episodes, listed: tuple[np.ndarray, np.ndarray, np.ndarray], n: np.ndarray, length: int) -> Windows:
    """Return the windows of these numbers, counted through the trajectories."""
    last, size, windows = listed
    total = np.cumsum(windows)
    which = np.searchsorted(total, n, side="right")
    offset = n - (total - windows)[which]
    return (last[which] - offset * episodes.num_envs) % episodes.num_slots, np.minimum(size[which], length)


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


def _choose(episodes: Episodes, number: int, length: int, by: str, strict: bool) -> Windows:
    found = _listed(episodes, length, strict)
    windows, total = found[2], int(found[2].sum())
    if total < number:
        raise ValueError(
            f"Without replacement, num_slices must be at most {total}, the number of stored windows of {length} steps, "
            f"got {number}."
        )
    likely = None if by == "window" else np.repeat(1 / (len(windows) * windows), windows)
    n = np.random.choice(total, number, replace=False, p=likely)  # noqa: NPY002
    return _nth(episodes, found, n, length)
