"""A file that the command writes is complete, or does not exist."""

import contextlib
import errno
import os
import resource

import pytest

from jaxenvs import cli
from jaxenvs.files import replacing
from tests.bridge.app.short_runs import TINY, weights


@contextlib.contextmanager
def full_disk(most_bytes):
    """Let no file grow beyond a number of bytes, as on a full disk, though with another error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(b"before")
    with full_disk(1000), pytest.raises(OSError, match="File too large"), replacing(path) as unfinished:
        unfinished.write_bytes(bytes(2000))
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_while_writing_leaves_the_one_before(tmp_path):
    def write():
        with replacing(tmp_path / "file.bin") as unfinished:
            unfinished.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_run_on_a_full_disk_ends_in_one_line_and_goes_on_when_there_is_room(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"

    def full(number):
        if "/.model." in os.readlink(f"/proc/self/fd/{number}"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("jaxenvs.files.os.fsync", full)
        with pytest.raises(SystemExit) as exit_info:
            cli.main(["train", "ppo", "CartPole-v1", *TINY, "--out", str(out)])
    assert exit_info.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert f"Cannot write {out}: [Errno 28] No space left on device. The last checkpoint is intact." in message
    assert f"jaxenvs train --resume {out}" in message
    assert not (out / "model.zip").exists()
    cli.main(["train", "--resume", str(out)])
    assert weights(out)
