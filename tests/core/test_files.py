"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import pytest

from jaxenvs import files
from jaxenvs.files import replacing


def test_a_file_is_replaced_where_a_link_leads_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    target, link = tmp_path / "runs" / "7", tmp_path / "latest.zip"
    link.symlink_to(target)
    for text in ("first", "second"):  # into a link that leads nowhere yet, and over what is there
        with replacing(link) as unfinished:
            assert unfinished.suffix == ".zip"
            unfinished.write_text(text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["7"]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "model.zip"
    path.touch()
    path.chmod(mode)
    with replacing(path) as unfinished:
        assert unfinished.stat().st_mode & 0o777 == mode  # also while it is written
        unfinished.write_text("new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == mode


def test_a_file_is_flushed_through_a_descriptor_that_can_write_as_windows_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(os.write(file, b"")))
    with replacing(tmp_path / "model.zip") as unfinished:
        unfinished.write_text("new")
    assert len(flushed) == 1


def test_a_file_that_nobody_may_write_is_flushed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_write(path: Path, mode: str) -> IO[bytes]:  # also root, who may write all files
        if mode != "rb":
            raise PermissionError
        return open(path, mode)

    monkeypatch.setattr(files, "open", refuse_to_write, raising=False)
    with replacing(tmp_path / "model.zip") as unfinished:
        unfinished.write_text("new")
    assert (tmp_path / "model.zip").read_text() == "new"
