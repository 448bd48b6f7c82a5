"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, which replaces `path` once all is written. If writing fails, `path` is what it was.

    The file is beside `path`, on the same disk, has its suffix, and is gone in the end. Of a symbolic link, the file
    that it leads to is replaced; and who may read or write a file that was there, may do so with the new one.
    """
    suffix = Path(path).suffix  # by which writers choose a format, wherever a link leads
    path = Path(os.path.realpath(path))
    # The process in its name: several may write the same file.
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.unfinished{suffix}")
    try:
        if path.exists():
            # Before anything is in it.
            os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            unfinished.chmod(stat.S_IMODE(path.stat().st_mode))
        yield unfinished
        _flush(unfinished)  # or a crash may leave the new name with nothing in it
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until the disk has what is in a file."""
    file: IO[bytes]
    try:
        file = open(path, "r+b")  # noqa: SIM115  Windows flushes no file that is open for reading alone
    except PermissionError:  # it has the mode of a file that nobody may write
        file = open(path, "rb")  # noqa: SIM115
    with file:
        os.fsync(file.fileno())
