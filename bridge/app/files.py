"""Files and folders that the command writes, and what it says if it cannot."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from jaxenvs import files
from jaxenvs.cli import UserError


class CannotWrite(UserError):
    """A disk is full, a folder is read-only, or the like."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """The context in which a file, or something in a folder, is written.

    Raises:
      CannotWrite: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"Cannot write {path}: {error.strerror or error}.") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which replaces `path` once all is written: the file is whole or not there.

    Raises:
      CannotWrite: a disk is full, or the like.
    """
    with writing(path), files.replacing(path) as unfinished:
        yield unfinished


def check_folder(path: Path) -> None:
    """Say beforehand that nothing can be written there, without making anything.

    Raises:
      CannotWrite: it is a file, or inside of one, or read-only.
    """
    with writing(path):
        existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise CannotWrite(f"Cannot write {path}: {existing} is a file.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CannotWrite(f"Cannot write {path}: {existing} is read-only.")


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, where they are not there yet.

    Raises:
      CannotWrite: it cannot be made.
    """
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
