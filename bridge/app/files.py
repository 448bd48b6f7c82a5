"""Files and folders that the command writes, and its errors if it cannot."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from jaxenvs import files
from jaxenvs.cli.user_errors import UserError


class CannotWrite(UserError):
    """A file cannot be written, because a disk is full, a folder is read-only, or the like."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError, while a file or something in a folder is written, to CannotWrite.

    Raises:
      CannotWrite: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"Cannot write {path}: {error.strerror or error}.") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces `path` once everything is written: the file is complete or absent.

    Raises:
      CannotWrite: a disk is full, or the like.
    """
    with writing(path), files.replacing(path) as unfinished:
        yield unfinished


def check_folder(path: Path) -> None:
    """Check in advance whether something can be written to a folder, without making anything.

    Raises:
      CannotWrite: it is a file, inside of one, or read-only.
    """
    with writing(path):
        existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise CannotWrite(f"Cannot write {path}: {existing} is a file.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CannotWrite(f"Cannot write {path}: {existing} is read-only.")


def make_folder(path: Path) -> None:
    """Make a folder and its parents, where they do not exist.

    Raises:
      CannotWrite: it cannot be made.
    """
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
