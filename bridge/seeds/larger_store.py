"""Resume with a larger budget: copy the replay stores of a checkpoint into larger ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxenvs.learn.off_policy.store import replay_tags

REPLAY = ".replay"  # prefix of the names of a store's arrays


def in_larger_store(like: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a training state with replay stores as large as in `like`, for each seed.

        rows:               [r0 r1 r2 r3]   ->   [r0 r1 r2 r3 .  .  .  .]      position: behind r3
        ends of episodes:   [e4 e5 e2 e3]   ->   [e2 e3 e4 e5 .  .  .  .]      the oldest first

    Args:
      like: the state's shapes. An on-policy training has no store, so its arrays are returned unchanged.
      arrays: by name, of the checkpoint.
    """
    replay, grown = getattr(like, "replay", None), dict(arrays)
    if replay is None or grown[f"{REPLAY}.tag"].shape == replay.tag.shape:
        return grown
    old = {name: array for name, array in grown.items() if name.startswith(REPLAY)}
    _put_ends_in_order(old)
    rows = old[f"{REPLAY}.tag"].shape[1]
    # The store was large enough for the budget, so if it was full, it had just become full.
    was_full = (old[f"{REPLAY}.position"] == 0) & (grown[".iteration"] > 0)
    old[f"{REPLAY}.position"] = np.where(was_full, np.int32(rows), old[f"{REPLAY}.position"])
    if (begin := old.get(f"{REPLAY}.episodes.begin")) is not None:
        old[f"{REPLAY}.episodes.begin"] = np.where(was_full[:, None] & (begin == 0), np.int32(rows), begin)
    for path, leaf in jax.tree_util.tree_leaves_with_path(replay):
        name = f"{REPLAY}{jax.tree_util.keystr(path)}"
        more = [(0, new - each) for new, each in zip(leaf.shape, old[name].shape)]
        # New rows are no ends, and new slots have no past, as in Replay.create.
        grown[name] = np.pad(old[name], more, constant_values=-1 if name.endswith((".tag", ".end_slot")) else 0)
    return grown


def _put_ends_in_order(store: dict[str, np.ndarray]) -> None:
    """Sort the last observations of episodes, the oldest first, so that in a larger ring new ones follow the newest."""
    slots, tags, num_ended = (store[f"{REPLAY}.{name}"].copy() for name in ("end_slot", "tag", "num_ended"))
    size = slots.shape[1]
    first = np.where(num_ended > size, num_ended % size, 0)  # the oldest
    order = (first[:, None] + np.arange(size)) % size
    for name, array in store.items():
        if name.startswith((f"{REPLAY}.end_slot", f"{REPLAY}.end_observation")):
            store[name] = np.stack([rows[each] for rows, each in zip(array, order)])
    end = (replay_tags.end_row(tags) - first[:, None, None]) % size
    moved = replay_tags.make_end(end, replay_tags.terminated(tags), replay_tags.truncated(tags))
    is_end = replay_tags.is_end(tags)
    store[f"{REPLAY}.tag"] = np.where(is_end & (tags != -1), moved, tags).astype(tags.dtype)
    store[f"{REPLAY}.num_ended"] = np.minimum(num_ended, size).astype(num_ended.dtype)
