"""Storage of a ring's arrays, in memory or in files."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from bridge.replay.data.memmap import MemoryMapped
from bridge.replay.store.columns import leaves
from bridge.replay.store.ring import FIRST_ENDS, InMemory, Ring

# Rings that this process has open in files. A pickled buffer is a path, and may be loaded while the buffer is open
# here.
_OPEN: weakref.WeakValueDictionary[Path, Ring] = weakref.WeakValueDictionary()


class Closed:
    """Stands for a ring whose folder was closed, and raises ValueError when it is used."""

    def __init__(self, path: os.PathLike[str]) -> None:
        self.__dict__["path"] = path

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"The replay buffer in {self.path} is closed.")


def make_ring(
    storage: str,
    path: str | os.PathLike[str] | None,
    capacity: int,
    num_envs: int,
    observation: Any,
    action: tuple[tuple[int, ...], Any],
) -> Ring:
    """Return a ring in the storage "ram" or "memmap": an empty one, or the one that the folder `path` holds.

    See `Ring.allocate` for the other arguments. If the disk is full, the folder is unchanged.
    """
    if storage not in ("ram", "memmap"):
        raise ValueError(f"storage must be 'ram' or 'memmap', got {storage!r}.")
    if (path is None) == (storage == "memmap"):
        raise ValueError(f"path must be a folder with storage='memmap' and None otherwise, got {path!r}.")
    if path is None:
        return Ring.allocate(capacity, num_envs, observation, action, InMemory())
    names = [f"observation.{name}" for name in observation] if isinstance(observation, dict) else ["observation"]
    parts = dict(zip(names, leaves(observation))) | {"action": action}
    layout = {"capacity": capacity, "num_envs": num_envs}
    files = MemoryMapped(path, layout | {name: (part[0], np.dtype(part[1]).str) for name, part in parts.items()})
    try:
        ring = Ring.allocate(capacity, num_envs, observation, action, files, files.num_ends or FIRST_ENDS)
        files.begin(ring)
    except BaseException:
        files.discard()
        raise
    _OPEN[files.path] = ring
    return ring


def open_ring(path: Path) -> Ring | None:
    """Return the ring that this process has open in a folder, or None."""
    return _OPEN.get(path)
