"""A replay buffer in files: opened again, killed, copied, refused."""

import errno
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from bridge import ReplayBuffer
from bridge.replay.files import BEGUN, Files
from tests.bridge.replay.histories import ACTION, OBSERVATIONS, History
from tests.bridge.replay.test_replay_buffer import assert_same_samples

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def open_buffer(path, space="dict", size=60, num_envs=3, **kwargs):
    return ReplayBuffer(
        size, OBSERVATIONS[space], ACTION, device="cpu", n_envs=num_envs, storage="memmap", path=path, **kwargs
    )


@pytest.mark.parametrize("steps", [1, 13, 20, 55])
@pytest.mark.parametrize("space", ["vector", "dict"])
def test_a_buffer_opened_again_holds_what_it_held_and_goes_on(tmp_path, steps, space):
    reference = ReplayBuffer(60, OBSERVATIONS[space], ACTION, device="cpu", n_envs=3)
    history = History(3, OBSERVATIONS[space], 0, end_probability=0.6)
    buffer = open_buffer(tmp_path / "buffer", space)
    for _ in range(3):
        history.fill(steps, buffer, reference)
        assert_same_samples(buffer, reference)
        buffer.close()
        buffer = open_buffer(tmp_path / "buffer", space)
        assert (buffer.pos, buffer.size()) == (reference.pos, reference.size())
        assert_same_samples(buffer, reference)
        np.testing.assert_array_equal(buffer.timeouts, reference.timeouts)


def test_a_flush_that_does_not_come_to_its_end_leaves_the_last_one(tmp_path, monkeypatch):
    history = History(3, OBSERVATIONS["vector"], 0, end_probability=0)
    buffer = open_buffer(tmp_path, "vector", size=300)
    history.fill(30, buffer)
    buffer.flush()
    expected, dones = buffer.next_observations[:30].copy(), buffer.dones[:30].copy()
    history.reset([0, 1])
    history.fill(9, buffer)
    monkeypatch.setattr(Files, "_write_state", full_disk)
    with pytest.raises(OSError, match="No space"):
        buffer.flush()
    del buffer
    monkeypatch.undo()
    buffer = open_buffer(tmp_path, "vector", size=300)
    np.testing.assert_array_equal(buffer.next_observations[:30], expected)
    np.testing.assert_array_equal(buffer.dones[:30], dones)
    history.fill(2, buffer)
    np.testing.assert_array_equal(buffer.next_observations[:30], expected)


def test_what_was_overwritten_since_the_last_flush_is_not_stored(tmp_path):
    history = History(3, OBSERVATIONS["vector"], 0)
    buffer = open_buffer(tmp_path, "vector", size=300)
    history.fill(130, buffer)
    buffer.flush()
    newest = buffer.next_observations[buffer.pos - 1].copy()
    history.fill(20, buffer)
    del buffer
    buffer = open_buffer(tmp_path, "vector", size=300)
    assert 78 <= buffer.size() <= 80
    np.testing.assert_array_equal(buffer.next_observations[buffer.pos - 1], newest)


@pytest.mark.parametrize(("before", "since"), [(20, 1), (30, 5), (5, 5), (5, 20)])
def test_a_row_whose_next_observation_was_overwritten_is_not_stored(before, since, tmp_path):
    def reopened():
        settings = {"optimize_memory_usage": True, "handle_timeout_termination": False}
        return ReplayBuffer(10, NUMBER, NUMBER, device="cpu", storage="memmap", path=tmp_path, **settings)

    def fill(buffer, first, count):
        for number in np.arange(first, first + count, dtype=float)[:, None]:
            buffer.add(number, number + 1, number, number, np.zeros(1), [{}])

    buffer = reopened()
    fill(buffer, 0, before)
    buffer.flush()
    fill(buffer, before, since)
    del buffer
    buffer = reopened()
    assert buffer.stored()[1] == max(min(before, 9 - since), 0)
    if buffer.stored()[1]:
        samples = buffer.sample(200)
        assert (samples.observations == samples.rewards).all()
        assert (samples.next_observations == samples.rewards + 1).all()


def test_reset_forgets_what_is_in_files_too(tmp_path):
    buffer = open_buffer(tmp_path)
    History(3, OBSERVATIONS["dict"], 0).fill(25, buffer)
    buffer.reset()
    del buffer
    assert open_buffer(tmp_path).size() == 0


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the script forks")
def test_killed_writers_leave_a_consistent_buffer_each_time(tmp_path):
    script = Path(__file__).with_name("killed_writers.py")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills, of_full = map(int, re.findall(r"\d+", done.stdout))
    assert kills == 25
    assert of_full > 5


def test_a_folder_of_another_buffer_is_refused_and_left_alone(tmp_path):
    buffer = open_buffer(tmp_path)
    History(3, OBSERVATIONS["dict"], 0).fill(5, buffer)
    buffer.close()
    with pytest.raises(ValueError, match="whose buffer_size is 20 instead of 30"):
        open_buffer(tmp_path, size=90)
    with pytest.raises(ValueError, match="path must be the folder of a replay buffer like this one"):
        open_buffer(tmp_path, "vector")
    assert open_buffer(tmp_path).size() == 5


def test_a_folder_in_use_is_refused(tmp_path):
    buffer = open_buffer(tmp_path)
    with pytest.raises(ValueError, match="path must not be in use"):
        open_buffer(tmp_path)
    History(3, OBSERVATIONS["dict"], 0).fill(5, buffer)
    assert buffer.size() == 5


def test_a_closed_buffer_says_so(tmp_path):
    buffer, history = open_buffer(tmp_path), History(3, OBSERVATIONS["dict"], 0)
    history.fill(5, buffer)
    buffer.close()
    buffer.close()
    for use in (lambda: buffer.sample(1), lambda: buffer.rewards, lambda: history.fill(1, buffer), buffer.flush):
        with pytest.raises(ValueError, match=f"The replay buffer in {tmp_path} is closed"):
            use()
    assert open_buffer(tmp_path).size() == 5


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="files are allocated by posix_fallocate")
def test_a_full_disk_is_noticed_at_once_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    with pytest.raises(OSError, match=r"path has no space left for the .* bytes of observations\.image"):
        open_buffer(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_is_the_folder(tmp_path):
    buffer = open_buffer(tmp_path)
    History(3, OBSERVATIONS["dict"], 0).fill(25, buffer)
    pickled = pickle.dumps(buffer)
    assert len(pickled) < 5000
    assert_same_samples(pickle.loads(pickled), buffer)
    expected = buffer.next_observations.copy()
    del buffer
    again = pickle.loads(pickled).next_observations
    for name in expected:
        np.testing.assert_array_equal(again[name], expected[name])


def test_a_pickle_whose_folder_is_gone_is_refused(tmp_path):
    buffer = open_buffer(tmp_path / "buffer")
    pickled = pickle.dumps(buffer)
    buffer.close()
    shutil.rmtree(tmp_path / "buffer")
    with pytest.raises(ValueError, match=f"needs its folder {tmp_path / 'buffer'}, which has no state.json. Restore"):
        pickle.loads(pickled)
    assert not any(tmp_path.iterdir())


def test_stock_algorithms_save_and_load_it(tmp_path):
    def make():
        return stable_baselines3.DQN(
            "MlpPolicy",
            make_vec_env("CartPole-v1", 2, seed=0),
            device="cpu",
            buffer_size=100,
            learning_starts=20,
            replay_buffer_class=ReplayBuffer,
            replay_buffer_kwargs={"storage": "memmap", "path": tmp_path / "buffer"},
        )

    model = make().learn(120)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    model.save(tmp_path / "model.zip")
    expected = model.replay_buffer.next_observations.copy()
    with pytest.raises(ValueError, match="path must not be in use"):
        stable_baselines3.DQN.load(tmp_path / "model.zip")
    assert stable_baselines3.DQN.load(tmp_path / "model.zip", replay_buffer_kwargs={}).replay_buffer.size() == 0
    model.replay_buffer.close()
    model = stable_baselines3.DQN.load(tmp_path / "model.zip", make_vec_env("CartPole-v1", 2))
    np.testing.assert_array_equal(model.replay_buffer.next_observations, expected)
    model.load_replay_buffer(tmp_path / "buffer.pkl")
    np.testing.assert_array_equal(model.replay_buffer.next_observations, expected)
    model.learn(50)


@pytest.mark.parametrize(("storage", "path"), [("memmap", None), ("ram", "here")])
def test_a_path_goes_with_files_alone(storage, path):
    with pytest.raises(ValueError, match="path must be a folder with storage='memmap' and None otherwise"):
        ReplayBuffer(60, OBSERVATIONS["dict"], ACTION, storage=storage, path=path)


def test_a_path_of_a_file_is_refused():
    with pytest.raises(ValueError, match=f"path must be a folder, got the file {Path(__file__).resolve()}"):
        open_buffer(__file__)


@pytest.mark.parametrize("name", ["rewards.bin", "next_observations.which.bin"])
@pytest.mark.parametrize("size", [None, 0, 7])
def test_a_file_that_was_cut_off_is_refused(name, size, tmp_path):
    buffer = open_buffer(tmp_path)
    History(3, OBSERVATIONS["dict"], 0).fill(25, buffer)
    buffer.close()
    file = tmp_path / name
    expected = file.stat().st_size
    os.truncate(file, expected - 1 if size is None else size)
    with pytest.raises(ValueError, match=rf"{name}, which has {expected - 1 if size is None else size} bytes instead"):
        open_buffer(tmp_path)
    assert file.stat().st_size < expected
    file.unlink()
    with pytest.raises(ValueError, match=f"{name}, which has 0 bytes instead of {expected}"):
        open_buffer(tmp_path)


@pytest.mark.parametrize("name", ["action.bin", "reward_model.bin", "my_unfinished_thesis.txt", "lock", "state.json"])
def test_files_of_others_are_left_alone_whatever_they_are_called(name, tmp_path):
    (tmp_path / name).write_text("all of it")
    with pytest.raises(ValueError, match="path must be"):
        open_buffer(tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "all of it")]


def test_a_folder_in_which_a_buffer_was_begun_and_no_more_is_taken(tmp_path):
    open_buffer(tmp_path).close()
    (tmp_path / "state.json").unlink()  # which comes last
    (tmp_path / "lock").write_bytes(BEGUN)
    assert open_buffer(tmp_path).size() == 0


@pytest.mark.parametrize(
    ("content", "what"), [(None, "no"), ("", "a damaged"), ('{"layout": {}, "added": 3}', "a damaged")]
)
def test_a_folder_whose_state_is_missing_or_damaged_is_refused_and_left_alone(content, what, tmp_path):
    buffer = open_buffer(tmp_path)
    History(3, OBSERVATIONS["dict"], 0).fill(5, buffer)
    buffer.close()
    state = tmp_path / "state.json"
    expected = state.read_text()
    state.unlink() if content is None else state.write_text(content)
    with pytest.raises(ValueError, match=rf"got {tmp_path}, which holds actions.bin and {what} state.json"):
        open_buffer(tmp_path)
    state.write_text(expected)
    assert open_buffer(tmp_path).size() == 5


@pytest.mark.skipif(os.name != "posix", reason="a file is handed to another process")
def test_a_closed_folder_is_free_while_a_process_lives_that_has_its_files_open(tmp_path):
    """The other process has the files open, as a forked worker of a DataLoader has."""
    buffer = open_buffer(tmp_path)
    lock = buffer._files._lock
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock.fileno()]) as other:
        buffer.close()
        assert open_buffer(tmp_path).size() == 0
        other.stdin.close()
