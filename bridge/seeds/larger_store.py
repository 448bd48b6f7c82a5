"""Resume with a larger budget: copy the replay stores of a checkpoint into larger ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

REPLAY = ".replay"  # prefix of the names of a store's arrays


def in_larger_store(like: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a training state with replay stores as large as in `like`, for each seed.

        rows:  [r0 r1 r2 r3]   ->   [r0 r1 r2 r3 .  .  .  .]      position: behind r3

    Args:
      like: the state's shapes. An on-policy training has no store, so its arrays are returned unchanged.
      arrays: by name, of the checkpoint.
    """
    replay, grown = getattr(like, "replay", None), dict(arrays)
    if replay is None or (rows := grown[f"{REPLAY}.reward"].shape[1]) == replay.reward.shape[1]:
        return grown
    # The store was large enough for the budget, so if it was full, it had just become full.
    was_full = (grown[f"{REPLAY}.position"] == 0) & (grown[".iteration"] > 0)
    grown[f"{REPLAY}.position"] = np.where(was_full, np.int32(rows), grown[f"{REPLAY}.position"])
    if (begin := grown.get(f"{REPLAY}.episodes.begin")) is not None:
        grown[f"{REPLAY}.episodes.begin"] = np.where(was_full[:, None] & (begin == 0), np.int32(rows), begin)
    for path, leaf in jax.tree_util.tree_leaves_with_path(replay):
        name = f"{REPLAY}{jax.tree_util.keystr(path)}"
        grown[name] = np.pad(grown[name], [(0, new - each) for new, each in zip(leaf.shape, grown[name].shape)])
    return grown
