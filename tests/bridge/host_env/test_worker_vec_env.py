"""Failures of environments in workers, which have the same effects in processes and in Ray's actors."""

import logging

import numpy as np
import pytest

from bridge import WorkerDied, WorkerError
from tests.bridge.host_env.host_environments import HANG, RAISE, SIGKILL

TIMEOUT = 2.0  # seconds, which steps of workers that do not hang need not even on a busy machine


def test_an_environment_that_raises_is_named_with_its_traceback_and_all_are_shut_down(workers, start, tmp_path):
    venv = start()
    venv.set_attr("closed_file", tmp_path / "closed")
    started = workers.started(venv)
    with pytest.raises(WorkerError, match=r"(?s)Environment 1 raised.*ArithmeticError: the pole broke") as error:
        venv.step(np.array([0, RAISE, 0]))
    assert 'raise ArithmeticError("the pole broke")' in str(error.value)
    assert error.value.env_indices == [1]
    assert all(worker.poll() is not None for worker in started)
    assert (tmp_path / "closed").read_text() == "closed\n" * 3
    with pytest.raises(RuntimeError, match=f"This {type(venv).__name__} is closed"):
        venv.reset()


def test_a_step_that_takes_longer_than_step_timeout_is_named_and_its_worker_killed(workers, start):
    venv = start(step_timeout=TIMEOUT)
    started = workers.started(venv)
    venv.step(np.zeros(3, int))
    said = rf"The {workers.kind} of environment 2 did not finish its step within step_timeout = 2 s"
    with pytest.raises(WorkerDied, match=said):
        venv.step(np.array([0, 0, HANG]))
    assert all(worker.poll() is not None for worker in started)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [SIGKILL, HANG])
def test_a_worker_that_is_started_again_truncates_its_environments_and_no_others(workers, start, caplog, fault):
    venv = start(on_worker_death="restart", step_timeout=TIMEOUT)
    venv.step(np.full(3, 3))
    before = venv.step(np.full(3, 3))[0]
    with caplog.at_level(logging.WARNING, "jaxenvs.sb3"):
        after, rewards, dones, infos = venv.step(np.array([fault, 3, 3]))
    assert dones.tolist() == [True, True, False]
    np.testing.assert_allclose(rewards, [0, 0, 0.3])
    for index in (0, 1):
        assert infos[index]["TimeLimit.truncated"]
        np.testing.assert_array_equal(infos[index]["terminal_observation"], before[index])
        assert (infos[index]["episode"]["r"], infos[index]["episode"]["l"]) == (pytest.approx(0.6), 3)
    assert infos[2] == {"TimeLimit.truncated": False}
    np.testing.assert_array_equal(after[:, 1], [0, 0, 3])
    assert (after[:2, 0] != before[:2, 0]).any()  # one of 999 numbers may be drawn again
    assert venv.restarts == 1
    assert f"The {workers.kind} of environments 0 to 1 " in caplog.text
    assert "restarted with new episodes (restart 1)" in caplog.text
    later, _, dones, _ = venv.step(np.zeros(3, int))
    np.testing.assert_array_equal(later, np.stack([after[:, 0], after[:, 1] + 1], 1))
    assert not dones.any()


def test_environments_of_a_worker_that_died_between_steps_are_truncated_in_the_next(workers, start):
    venv = start(on_worker_death="restart")
    before = venv.step(np.ones(3, int))[0]
    workers.kill(venv, 1)
    assert venv.get_attr("count") == [1, 1, 0]  # it is restarted here
    after, _, dones, infos = venv.step(np.ones(3, int))
    assert dones.tolist() == [False, False, True]
    np.testing.assert_array_equal(infos[2]["terminal_observation"], before[2])
    np.testing.assert_array_equal(after[:, 1], [2, 2, 0])


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
