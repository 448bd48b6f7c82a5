"""Failures of the processes of a ProcessVecEnv, which is closed by them; test_worker_restarts is of the others."""

import functools
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from bridge import ProcessVecEnv, WorkerDied, WorkerError
from bridge.host_env.processes import process_vec_env
from tests.bridge.host_env.host_environments import (
    EXIT,
    HANG,
    RAISE,
    SEGMENTATION_FAULT,
    SIGKILL,
    TIMEOUT,
    Counting,
    Talkative,
)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids, seconds=120):
    """Return the processes that still run after some seconds."""
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_an_environment_that_cannot_be_made_is_named():
    with pytest.raises(WorkerError, match=r"(?s)Environment 2 raised.*KeyError: 'sound'"):
        ProcessVecEnv([Counting, Counting, functools.partial(Counting, kind="sound")], envs_per_process=2)


def test_a_system_that_is_not_posix_is_named(monkeypatch):
    monkeypatch.setattr(process_vec_env, "IS_POSIX", False)
    with pytest.raises(OSError, match="ProcessVecEnv needs Linux or macOS"):
        ProcessVecEnv([Counting])


def test_an_environment_that_raises_is_named_with_its_traceback_and_all_are_shut_down(start, tmp_path):
    venv = start()
    venv.set_attr("closed_file", tmp_path / "closed")
    started = list(venv.processes)
    with pytest.raises(WorkerError, match=r"(?s)Environment 1 raised.*ArithmeticError: the pole broke") as error:
        venv.step(np.array([0, RAISE, 0]))
    assert 'raise ArithmeticError("the pole broke")' in str(error.value)
    assert error.value.env_indices == [1]
    assert all(process.poll() is not None for process in started)
    assert (tmp_path / "closed").read_text() == "closed\n" * 3
    with pytest.raises(RuntimeError, match=f"This {type(venv).__name__} is closed"):
        venv.reset()


def test_a_method_that_raises_shuts_nothing_down(start):
    venv = start()
    with pytest.raises(WorkerError, match=r"(?s)Environment 0 raised.*TypeError"):
        venv.env_method("add", "text")
    assert venv.env_method("add", 1) == [1, 1, 1]


@pytest.mark.parametrize(
    ("fault", "exit_code", "how"),
    [
        (SIGKILL, -9, r"was killed by SIGKILL \(exit code -9\)"),
        (SEGMENTATION_FAULT, -11, r"was killed by SIGSEGV \(exit code -11\)"),
        (EXIT, 3, r"ended \(exit code 3\)"),
    ],
)
def test_a_worker_that_dies_is_named_with_its_exit_code(start, fault, exit_code, how):
    venv = start()
    pids = [process.pid for process in venv.processes]
    with pytest.raises(WorkerDied, match=f"The process of environments 0 to 1 {how}") as error:
        venv.step(np.array([0, fault, 0]))
    assert (error.value.env_indices, error.value.exit_code) == ([0, 1], exit_code)
    assert not wait_until_gone(pids)


def test_a_worker_that_dies_between_steps_is_named_by_whatever_comes_next(start):
    for use in (ProcessVecEnv.reset, lambda venv: venv.get_attr("count")):
        venv = start()
        os.kill(venv.processes[1].pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="The process of environment 2 was killed by SIGKILL"):
            use(venv)
        assert not venv.processes


def test_a_death_is_seen_and_nothing_left_even_if_the_environment_started_processes_that_hold_its_files(start):
    venv = start()
    pids = venv.env_method("leave_a_process", indices=0)[0]
    with pytest.raises(WorkerDied, match="environments 0 to 1 was killed"):
        venv.step(np.array([SIGKILL, 0, 0]))
    assert not wait_until_gone(pids)


def test_a_step_that_takes_longer_than_step_timeout_is_named_and_its_worker_killed(start):
    venv = start(step_timeout=TIMEOUT)
    started = list(venv.processes)
    venv.step(np.zeros(3, int))
    with pytest.raises(WorkerDied, match="process of environment 2 did not finish its step within step_timeout = 2 s"):
        venv.step(np.array([0, 0, HANG]))
    assert all(process.poll() is not None for process in started)


def test_with_a_step_timeout_a_reset_that_hangs_is_named(monkeypatch):
    class HangsInReset(Counting):
        def reset(self, **arguments):
            time.sleep(60)

    monkeypatch.setattr(process_vec_env, "SECONDS_TO_BEGIN", 0.5)
    with pytest.raises(WorkerDied, match=r"The process of environment 0 did not finish its reset within 0.5 s"):
        ProcessVecEnv([HangsInReset], step_timeout=0.2).reset()


def test_a_step_wait_that_was_interrupted_can_be_called_again(start, monkeypatch):
    venv = start()
    venv.step_async(np.ones(3, int))
    with monkeypatch.context() as patch:
        patch.setattr(venv._workers[1], "receive", lambda deadline: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            venv.step_wait()
    np.testing.assert_array_equal(venv.step_wait()[0][:, 1], [1, 1, 1])
    venv.step_async(np.ones(3, int))  # and one that is never called leaves nothing behind
    np.testing.assert_array_equal(venv.reset()[:, 1], [0, 0, 0])
    np.testing.assert_array_equal(venv.step(np.ones(3, int))[0][:, 1], [1, 1, 1])


# --- With more on the way than sockets hold -------------------------------------------------------------------------


@pytest.fixture
def step_under_way():
    """A ProcessVecEnv with a worker that has ended a step, and whose answer is too long to send before it is read."""
    venv = ProcessVecEnv([Talkative])
    venv.reset()
    venv.step_async(np.zeros(1, int))
    time.sleep(0.2)
    yield venv
    venv.close()


def test_environments_are_closed_though_a_step_under_way_has_much_to_tell(tmp_path):
    venv = ProcessVecEnv([Talkative])
    venv.reset()
    venv.set_attr("closed_file", tmp_path / "closed")
    venv.step_async(np.zeros(1, int))
    venv.close()
    assert (tmp_path / "closed").read_text() == "closed\n"


def test_a_reset_with_much_to_tell_does_not_wait_for_a_worker_that_has_too(step_under_way):
    step_under_way.set_options({"map": np.zeros(2**20, np.uint8)})
    assert step_under_way.reset()[0, 1] == 0
