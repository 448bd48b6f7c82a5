"""A ring in memory-mapped files, which stay consistent whenever the process is killed.

What a flush has written remains valid until the next flush. Observations, actions and rewards are written into the
files as they come, over the oldest rows. So before the cursor enters rows that the last flush counts as stored, a
reservation on disk says how far it may go: reserved rows do not count as stored when the folder is opened again. Tags
are in memory, and in their file as of the last flush. Final observations overwrite the final observations of rows that
were reserved before; when they need more space, they move to a new file, and the old one stays until the flush. The
tags of the newest row, which may still change, are in the state file with the cursor. The state file and the
reservation are replaced atomically.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from bridge.replay.store.ring import InMemory, Ring
from jaxenvs.files import replacing
from jaxenvs.learn.off_policy.store import replay_tags

try:
    import fcntl
except ImportError:
    # Windows has no fcntl, so nothing prevents opening a folder twice there.
    fcntl = None  # type: ignore[assignment]

STATE, RESERVED, LOCK = "state.npz", "reserved.json", "lock"
# The content of a lock file, which identifies a folder in which a buffer was begun but never flushed.
BEGUN = b"bridge.ReplayBuffer\n"
# Files that grow have their number of rows in their name, so that the old file stays while a new one is written.
GROWING = ("tag", "end_observation")
# A reservation exceeds what is needed by this fraction of the rows, which a kill may cost beyond the overwritten ones.
RESERVED_SHARE = 64


class MemoryMapped(InMemory):
    """The files of a ring, in a separate folder."""

    def __init__(self, path: str | os.PathLike[str], layout: dict[str, Any]) -> None:
        """Lock the folder, and read its state. One whose columns have another `layout` is refused."""
        self.path = Path(path).resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        self._layout = json.loads(json.dumps(layout))
        self._require_ours()
        self._lock = _locked(self.path)
        self._maps: dict[Path, np.memmap[Any, Any]] = {}
        self._flushes = self._flushed_size = self._flushed_ends = self._written = self._reserved = 0
        self._is_edited = False
        self._state = self._read_state()

    @property
    def num_ends(self) -> int | None:
        """The number of rows of the side ring in the folder; None if the folder is empty."""
        return None if self._state is None else int(self._state["counts"][4])

    def allocate(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a memory-mapped array: with the content of the folder while it is being opened, else with zeros."""
        file, size = self._file(name, shape[0]), math.prod(shape) * np.dtype(dtype).itemsize
        if self._state is None:
            try:
                with open(file, "wb") as new:
                    # Reserved now, because a page without space on disk would later end the process by a signal.
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(new.fileno(), 0, size)
                    else:
                        new.truncate(size)
            except OSError as error:
                file.unlink(missing_ok=True)
                what = f"path has no space left for the {size} bytes of {name}: {error.strerror}"
                raise OSError(error.errno, what, str(file)) from error
        self._maps[file] = np.memmap(file, dtype, "r+", shape=shape)
        return np.asarray(self._maps[file])

    def begin(self, ring: Ring) -> None:
        """Restore the rest of a ring's content from the folder, or write the first state into an empty folder."""
        if self._state is None:
            self.flush(ring)
            return
        state, self._state = self._state, None
        self._flushes, ring.position, ring.size, ring.num_ended, self._flushed_ends = state["counts"].tolist()
        self._flushed_size = ring.size
        ring.tag.reshape(-1)[:] = np.fromfile(self._file("tag", self._flushed_ends), np.int32)
        ring.tag[ring.newest] = state["last_tag"]
        for name, leaf in _named(ring.last_observation).items():
            leaf[...] = state[name]
        reserved = json.loads((self.path / RESERVED).read_text()) if (self.path / RESERVED).exists() else {"flush": -1}
        if reserved["flush"] == self._flushes:
            ring.size = min(ring.size, ring.capacity - reserved["rows"])
        for start, stop in _pieces(ring.position, ring.capacity - ring.size, ring.capacity):
            ring.tag[start:stop] = 0
        flat = ring.tag.reshape(-1)
        slots = replay_tags.is_end(flat).nonzero()[0]
        ring.end_slot[replay_tags.end_row(flat[slots])] = slots
        if ring.size < self._flushed_size:
            self.flush(ring)  # so that reserved rows are dropped for good
        self._remove_old()

    def reserve(self, ring: Ring, rows: int) -> None:
        """Write to disk how far the cursor may go, if `rows` more rows go beyond the last reservation."""
        self._written = needed = min(self._written + rows, ring.capacity)
        if needed > max(self._reserved, ring.capacity - self._flushed_size):
            reserved = min(needed + ring.capacity // RESERVED_SHARE, ring.capacity)
            with self._replacing(RESERVED) as file:
                file.write_text(json.dumps({"flush": self._flushes, "rows": reserved}))
            self._reserved = reserved

    def edited(self) -> None:
        """Let the next flush write all tags."""
        self._is_edited = True

    def flush(self, ring: Ring) -> None:
        """Write all that is stored to disk."""
        ring.count_ages()
        for mapped in self._maps.values():
            mapped.flush()
        num_ends = len(ring.end_slot)
        is_new = num_ends != self._flushed_ends
        # One row more than was written, because the tags of the previously newest row may have changed.
        changed = ring.capacity if is_new or self._is_edited else min(self._written + 1, ring.capacity)
        with open(self._file("tag", num_ends), "wb" if is_new else "r+b") as tags:
            for start, stop in _pieces((ring.position - changed) % ring.capacity, changed, ring.capacity):
                tags.seek(start * ring.num_envs * ring.tag.itemsize)
                tags.write(ring.tag[start:stop].data)
            tags.flush()
            os.fsync(tags.fileno())
        last = _named(ring.last_observation)
        counts = [self._flushes + 1, ring.position, ring.size, ring.num_ended, num_ends]
        layout = np.array(json.dumps(self._layout))
        with self._replacing(STATE) as file:
            np.savez(file, layout=layout, counts=np.array(counts), last_tag=ring.tag[ring.newest], **last)
        self._flushes, self._flushed_size, self._flushed_ends = self._flushes + 1, ring.size, num_ends
        self._written = self._reserved = 0
        self._is_edited = False
        self._remove_old()

    def close(self) -> None:
        """Let other processes open the folder."""
        self._maps.clear()
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a forked process has the file open, too
        self._lock.close()

    def discard(self) -> None:
        """Close after a ring could not be made, and remove all files if the folder was empty."""
        made = list(self._maps)
        self.close()
        if not (self.path / STATE).exists():
            for file in (*made, self.path / LOCK):
                file.unlink(missing_ok=True)

    def _file(self, name: str, rows: int) -> Path:
        return self.path / (f"{name}.{rows}.bin" if name.startswith(GROWING) else f"{name}.bin")

    def _read_state(self) -> Any:
        state = self._stored()
        if state is None:
            return None
        theirs = json.loads(str(state["layout"]))
        for name in sorted({*theirs, *self._layout}):
            if theirs.get(name) != self._layout.get(name):
                raise ValueError(
                    f"path must be the folder of a replay buffer like this one, got {self.path}, whose {name} is "
                    f"{theirs.get(name)} instead of {self._layout.get(name)}."
                )
        return state

    def _stored(self) -> Any:
        """Return the content of the state file; None if it does not exist."""
        state: dict[str, Any] = {}
        if not (self.path / STATE).exists():
            return None
        with contextlib.suppress(ValueError, OSError), np.load(self.path / STATE) as archive:
            state = dict(archive)
        if not state.keys() >= {"layout", "counts", "last_tag"}:
            raise ValueError(
                f"path must be the folder of a replay buffer, got {self.path}, whose {STATE} was not written by one."
            )
        return state

    def _require_ours(self) -> None:
        """Raise a ValueError if the folder holds files, and none that shows that a replay buffer was begun here."""
        lock = self.path / LOCK
        is_ours = self._stored() is not None or (lock.exists() and lock.read_bytes() == BEGUN)
        if names := [] if is_ours else sorted(os.listdir(self.path)):
            raise ValueError(
                f"path must be an empty folder or hold only a replay buffer, got {self.path}, which also holds "
                f"{names[0]}."
            )

    def _remove_old(self) -> None:
        """Remove files that the state does not name: outgrown ones, and unfinished ones of a process that ended."""
        for file in self.path.glob("*.bin"):
            if file.name.split(".")[0] in GROWING and not file.name.endswith(f".{self._flushed_ends}.bin"):
                self._maps.pop(file, None)
                file.unlink()
        for name in (STATE, RESERVED):
            for file in self.path.glob(f".{Path(name).stem}.*.unfinished.*"):
                file.unlink()

    @contextlib.contextmanager
    def _replacing(self, name: str) -> Iterator[Path]:
        with replacing(self.path / name) as file:
            yield file
        if hasattr(os, "O_DIRECTORY"):  # the file's name is on disk once its folder is
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(folder)
            os.close(folder)


def _named(last_observation: Any) -> dict[str, Any]:
    """Return the parts of the last observation by their names in the state file."""
    if isinstance(last_observation, dict):
        return {f"last_observation.{name}": leaf for name, leaf in last_observation.items()}
    return {"last_observation": last_observation}


def _pieces(start: int, count: int, capacity: int) -> list[tuple[int, int]]:
    """Return `count` rows from `start` on, around the end of the ring, as pairs of (start, stop)."""
    pieces = [(start, min(start + count, capacity)), (0, start + count - capacity)]
    return [(first, last) for first, last in pieces if first < last]


def _locked(path: Path) -> IO[bytes]:
    """Return the file whose lock marks the folder as in use. The system releases it when the process ends."""
    file = open(path / LOCK, "ab")  # noqa: SIM115
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ValueError(
            f"path must not be in use, but another replay buffer has {path} open. (To load a model without its replay "
            f"buffer: DQN.load(..., replay_buffer_kwargs={{}}).)"
        ) from None
    if not file.tell():
        file.write(BEGUN)
        file.flush()
    return file
