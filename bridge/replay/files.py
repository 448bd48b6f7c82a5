"""The arrays of a replay buffer in memory-mapped files, which hold what the last `flush` has written.

Rows are written into the files as they come, over the oldest ones. So before rows that the last flush counts as stored
are overwritten, a number on disk says how many may be: when the folder is opened again, these rows are dropped. This
number and the counts of the last flush are one file, which is replaced atomically.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import weakref
from pathlib import Path
from typing import IO, Any

import numpy as np

from bridge.replay.columns import map_leaves
from bridge.replay.rows import Rows
from jaxenvs.files import replacing

try:
    import fcntl
except ImportError:
    # Windows has no fcntl, so nothing prevents opening a folder twice there.
    fcntl = None  # type: ignore[assignment]

STATE, LOCK = "state.json", "lock"
# The content of a lock file while the first buffer of the folder is made, and what is appended then.
BEGUN, MADE = b"bridge.ReplayBuffer\n", b"made\n"
COUNTS = {"added", "first", "resets", "overwritten", "layout"}  # of a state
# Rows are marked this fraction of all rows ahead of need; a kill may cost them beyond the overwritten ones.
MARKED_SHARE = 64
# Buffers that this process has open. A pickled buffer is a path, and may be loaded while the buffer is open here.
_OPEN: weakref.WeakValueDictionary[Path, Rows] = weakref.WeakValueDictionary()


class Files:
    """The files of a replay buffer, in a separate folder."""

    def __init__(self, path: str | os.PathLike[str], rows: Rows) -> None:
        """Lock the folder, and put the arrays of a buffer, which may have any number of rows, into files."""
        self.path = Path(path).resolve()
        if self.path.is_file():
            raise ValueError(f"path must be a folder, got the file {self.path}.")
        self.path.mkdir(parents=True, exist_ok=True)
        self._capacity, self._num_envs = rows.buffer_size, rows.n_envs
        self._behind = int(rows.optimize_memory_usage)  # rows whose observation is written too, after the newest
        names = [name for name in rows.ARRAYS if name in vars(rows)]
        layout = {name: map_leaves(lambda leaf: [*leaf.shape[2:], leaf.dtype.str], vars(rows)[name]) for name in names}
        self._layout = {"buffer_size": self._capacity, "n_envs": self._num_envs} | layout
        state = self._state()
        self._lock = _locked(self.path)
        self._maps: dict[Path, Any] = {}
        # What the last flush has counted, how many rows it has stored, how many were written since, and how many of the
        # stored ones are marked as overwritten on disk.
        self._counts: dict[str, object] = {}
        self._flushed_size = self._written = self._marked = 0
        try:
            for name in names:
                vars(rows)[name] = self._in_files(name, vars(rows)[name], is_new=state is None)
            self._restore(rows, state)
        except BaseException:
            self.unlock()
            if state is None:
                for file in (*self._maps, self.path / LOCK):
                    file.unlink(missing_ok=True)
            raise
        if self._lock.tell() == len(BEGUN):
            self._lock.write(MADE)
            self._lock.flush()
        _OPEN[self.path] = rows

    def _in_files(self, name: str, tree: Any, is_new: bool) -> Any:
        if isinstance(tree, dict):
            return {key: self._in_files(f"{name}.{key}", leaf, is_new) for key, leaf in tree.items()}
        shape, file = (self._capacity, self._num_envs, *tree.shape[2:]), self.path / f"{name}.bin"
        size = math.prod(shape) * tree.itemsize
        self._maps[file] = None
        if is_new:
            try:
                with open(file, "wb") as new:
                    # Reserved now, because a page without space on disk would later end the process by a signal.
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(new.fileno(), 0, size)
                    else:
                        new.truncate(size)
            except OSError as error:
                what = f"path has no space left for the {size} bytes of {name}: {error.strerror}"
                raise OSError(error.errno, what, str(file)) from error
        elif (found := file.stat().st_size if file.exists() else 0) != size:
            raise ValueError(f"path must hold complete files, got {file}, which has {found} bytes instead of {size}.")
        self._maps[file] = np.memmap(file, tree.dtype, "r+", shape=shape)
        return np.asarray(self._maps[file])

    def _restore(self, rows: Rows, state: dict[str, Any] | None) -> None:
        """Restore the counters from the folder, or write the first state into an empty folder."""
        if state is not None:
            for file in self.path.glob(".*.unfinished.json"):
                file.unlink()  # of a process that was killed
            rows._added, rows.resets = state["added"], tuple(state["resets"])
            rows._first = max(state["first"], rows._added - self._capacity + state["overwritten"])
            rows.pos, rows.full = rows._added % self._capacity, rows._added >= self._capacity
        self.flush(rows)  # so that marked rows are dropped for good

    def _state(self) -> dict[str, Any] | None:
        """Return what the last flush has written about the rows, or None if there are none yet.

        Raises:
          ValueError: the folder is not one of a replay buffer like this one.
        """
        state, has_state = None, (self.path / STATE).exists()
        with contextlib.suppress(ValueError, OSError):
            state = json.loads((self.path / STATE).read_text())
        if not isinstance(state, dict) or not state.keys() >= COUNTS:
            lock = self.path / LOCK
            is_begun = lock.exists() and lock.read_bytes() == BEGUN and not has_state
            if others := [] if is_begun else sorted(os.listdir(self.path)):
                raise ValueError(
                    f"path must be an empty folder or hold only a replay buffer, got {self.path}, which holds "
                    f"{others[0]} and {'a damaged' if has_state else 'no'} {STATE}. Choose another folder."
                )
            return None
        for name in [*self._layout, *state["layout"]]:
            theirs, ours = state["layout"].get(name), self._layout.get(name)
            if theirs != ours:
                raise ValueError(
                    f"path must be the folder of a replay buffer like this one, got {self.path}, whose {name} is "
                    f"{theirs} instead of {ours}."
                )
        return state

    def reserve(self, num: int) -> None:
        """Write to disk how far rows may be overwritten, if `num` more rows go beyond the last mark."""
        self.require_open()
        self._written = min(self._written + num, self._capacity)
        needed = min(self._written + self._behind, self._capacity)
        if needed > max(self._marked, self._capacity - self._flushed_size):
            marked = min(needed + self._capacity // MARKED_SHARE, self._capacity)
            self._write_state(self._counts, marked)
            self._marked = marked

    def require_open(self) -> None:
        """Raise a ValueError if the folder was closed."""
        if self._lock.closed:
            raise ValueError(f"The replay buffer in {self.path} is closed.")

    def flush(self, rows: Rows) -> None:
        """Write all that is stored to disk."""
        self.require_open()
        for mapped in self._maps.values():
            mapped.flush()
        counts = {"added": rows.num_added(), "first": rows._first, "resets": rows.resets}
        self._write_state(counts, 0)
        self._counts, self._flushed_size, self._written, self._marked = counts, rows.stored()[1], 0, 0

    def close(self, rows: Rows) -> None:
        """Flush, take the arrays from a buffer, and let other processes open the folder."""
        if self._lock.closed:
            return
        self.flush(rows)
        for name in rows.ARRAYS:
            vars(rows).pop(name, None)
        self.unlock()

    def unlock(self) -> None:
        """Let other processes open the folder."""
        _OPEN.pop(self.path, None)
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a forked process has the file open, too
        self._lock.close()

    def reduced(self, rows: Rows) -> tuple[object, ...]:
        """Return what pickle stores of a buffer: its attributes, with arrays of no rows, and the folder."""
        self.flush(rows)
        state = rows.__getstate__()
        for name in rows.ARRAYS:
            if name in state:
                state[name] = map_leaves(lambda leaf: np.zeros((0, *leaf.shape[1:]), leaf.dtype), state[name])
        del state["_files"]
        return _opened, (self.path, type(rows), state)

    def _write_state(self, counts: dict[str, object], overwritten: int) -> None:
        with replacing(self.path / STATE) as file:
            file.write_text(json.dumps(counts | {"overwritten": overwritten, "layout": self._layout}))
        if hasattr(os, "O_DIRECTORY"):  # the file's name is on disk once its folder is
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(folder)
            os.close(folder)


def _opened(path: Path, cls: type[Rows], state: dict[str, object]) -> Rows:
    """Return the buffer that this process has open in a folder, or open it."""
    if (rows := _OPEN.get(path)) is None:
        if not (path / STATE).exists():
            raise ValueError(f"The pickled replay buffer needs its folder {path}, which has no {STATE}. Restore it.")
        rows = object.__new__(cls)
        vars(rows).update(state)
        rows._files = Files(path, rows)
        rows._forget()
    return rows


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
