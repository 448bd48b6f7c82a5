"""Write files that are either complete or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def require_folder_of(path: str | os.PathLike[str]) -> None:
    """Raise a FileNotFoundError that names the folder, if a file is to be written to one that does not exist."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "There is no such folder", os.fspath(folder))


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to; the file replaces `path` once it is complete. If writing fails, `path` is unchanged.

    The temporary file is beside `path`, on the same disk, has the same suffix, and is removed in the end. If `path` is
    a symbolic link, the file that it leads to is replaced. The new file keeps the permissions of an existing one.
    """
    # Writers choose a format by the suffix, wherever a link leads.
    suffix = Path(path).suffix
    path = Path(os.path.realpath(path))
    # The process id is in the name, because several processes may write the same file.
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}.unfinished{suffix}")
    try:
        if path.exists():
            # Set the permissions before anything is written.
            os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
            unfinished.chmod(stat.S_IMODE(path.stat().st_mode))
        yield unfinished
        _flush(unfinished)  # otherwise a crash may leave an empty file under the new name
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until the disk has what is in a file."""
    file: IO[bytes]
    try:
        file = open(path, "r+b")  # noqa: SIM115  Windows flushes no file that is open for reading alone
    except PermissionError:  # the file replaces a read-only one, and has its mode
        file = open(path, "rb")  # noqa: SIM115
    with file:
        os.fsync(file.fileno())
