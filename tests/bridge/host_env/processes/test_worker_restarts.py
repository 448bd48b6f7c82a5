"""Processes of a ProcessVecEnv that died, and were started again."""

import contextlib
import functools
import logging
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.vec_env import VecEnvWrapper

from bridge import PPO, ProcessVecEnv, SerialVecEnv, WorkerDied, factory, make_vec_env
from bridge.host_env.processes import process_vec_env
from tests.bridge.host_env.host_environments import HANG, SIGKILL, TIMEOUT, Counting


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [SIGKILL, HANG])
def test_a_worker_that_is_started_again_truncates_its_environments_and_no_others(start, caplog, fault):
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
    assert "The process of environments 0 to 1 " in caplog.text
    assert "restarted with new episodes (restart 1)" in caplog.text
    later, _, dones, _ = venv.step(np.zeros(3, int))
    np.testing.assert_array_equal(later, np.stack([after[:, 0], after[:, 1] + 1], 1))
    assert not dones.any()


def test_environments_of_a_worker_that_died_between_steps_are_truncated_in_the_next(start):
    venv = start(on_worker_death="restart")
    before = venv.step(np.ones(3, int))[0]
    os.kill(venv.processes[1].pid, signal.SIGKILL)
    assert venv.get_attr("count") == [1, 1, 0]  # it is restarted here
    after, _, dones, infos = venv.step(np.ones(3, int))
    assert dones.tolist() == [False, False, True]
    np.testing.assert_array_equal(infos[2]["terminal_observation"], before[2])
    np.testing.assert_array_equal(after[:, 1], [2, 2, 0])


def test_environments_of_a_worker_that_died_before_its_step_was_fetched_are_truncated_in_that_step(start, tmp_path):
    venv = start(on_worker_death="restart")
    before = venv.step(np.ones(3, int))[0]
    venv.step_async(np.full(3, 3))
    venv.env_method("die_once", tmp_path / "died", indices=0)
    after, rewards, dones, infos = venv.step_wait()
    assert dones.tolist() == [True, True, False]
    np.testing.assert_allclose(rewards, 0.3)  # for the step has taken place
    for index in (0, 1):
        np.testing.assert_array_equal(infos[index]["terminal_observation"], before[index] + [0, 1])
        assert infos[index]["TimeLimit.truncated"]
        assert infos[index]["episode"]["l"] == 2
    assert after[:, 1].tolist() == [0, 0, 2]
    later, _, dones, _ = venv.step(np.ones(3, int))
    np.testing.assert_array_equal(later, np.stack([after[:, 0], after[:, 1] + 1], 1))
    assert not dones.any()


def test_a_worker_that_hangs_whenever_it_is_started_is_given_up(tmp_path, monkeypatch):
    def make():
        while (tmp_path / "taken").exists():
            time.sleep(1)
        return Counting()

    venv = ProcessVecEnv([make], on_worker_death="restart", step_timeout=0.2)
    venv.reset()
    monkeypatch.setattr(process_vec_env, "SECONDS_TO_BEGIN", 0.5)
    (tmp_path / "taken").touch()
    with pytest.raises(WorkerDied, match=r"The process of environment 0 did not restart within 0.5 s"):
        venv.step(np.array([HANG]))
    assert venv.restarts == 1
    assert not venv.processes


def test_environments_of_a_worker_that_is_started_again_are_made_by_the_again_of_their_factory():
    def make(length=50):
        return Counting(length=length)

    make.again = functools.partial(make, length=60)
    venv = ProcessVecEnv([make], on_worker_death="restart")
    venv.reset()
    assert venv.get_attr("length") == [50]
    venv.step(np.array([SIGKILL]))
    assert venv.get_attr("length") == [60]
    venv.close()


def test_made_again_an_environment_of_make_vec_env_goes_on_with_its_monitor_log(tmp_path, monkeypatch):
    made = []
    monkeypatch.setitem(factory.ONE_BY_ONE, "process", lambda env_fns: SerialVecEnv(made.extend(env_fns) or env_fns))
    venv = make_vec_env(functools.partial(Counting, length=1), 1, monitor_dir=tmp_path, backend="process")
    for env in (venv.envs[0], made[0].again()):
        env.reset()
        env.step(0)
    assert load_results(tmp_path)["l"].tolist() == [1, 1]


def test_a_restart_that_was_interrupted_is_made_up_for(start, monkeypatch):
    venv = start(on_worker_death="restart")
    venv.step_async(np.array([SIGKILL, 0, 0]))
    with monkeypatch.context() as patch:
        patch.setattr(venv._workers[0], "start", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            venv.step_wait()
    assert venv.step_wait()[2].tolist() == [True, True, False]
    assert not venv.step(np.zeros(3, int))[2].any()


def test_a_reset_of_a_worker_that_died_keeps_its_seed(start):
    venv = start(on_worker_death="restart")
    venv.seed(0)
    expected = venv.reset()
    os.kill(venv.processes[0].pid, signal.SIGKILL)
    venv.seed(0)
    np.testing.assert_array_equal(venv.reset(), expected)
    assert not venv.step(np.zeros(3, int))[2].any()


@pytest.mark.thorough
def test_a_worker_that_dies_whenever_it_is_started_is_given_up(tmp_path):
    def make():
        if (tmp_path / "broken").exists():
            os._exit(5)
        return Counting()

    venv = ProcessVecEnv([make], on_worker_death="restart")
    venv.reset()
    (tmp_path / "broken").touch()
    with pytest.raises(WorkerDied, match=r"environment 0 ended \(exit code 5\)"):
        venv.step(np.array([SIGKILL]))
    assert not venv.processes


KILLS = 100


class NoTransitionCrossesARestart(VecEnvWrapper):
    """Holds every transition against what Counting does: the same episode counts on, a new one begins with 0."""

    def reset(self):
        self.last = self.venv.reset()
        return self.last

    def step_wait(self):
        observations, rewards, dones, infos = self.venv.step_wait()
        for last, observation, done, info in zip(self.last, observations, dones, infos):
            end = info["terminal_observation"] if done else observation
            died = done and info["TimeLimit.truncated"]
            assert end.tolist() == (last.tolist() if died else [last[0], last[1] + 1])
            assert not done or observation[1] == 0
        self.last = observations
        return observations, rewards, dones, infos


@pytest.mark.thorough
def test_training_goes_on_while_random_workers_are_killed(caplog):
    venv = ProcessVecEnv(
        [functools.partial(Counting, kind="box", actions="box", length=50)] * 4, on_worker_death="restart"
    )
    choose, ended = random.Random(0), threading.Event()

    def kill():
        for count in range(KILLS):
            while venv.restarts <= count:
                # One that is about to be started again is not there to be killed.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(choose.choice(venv.processes).pid, signal.SIGKILL)
                    while venv.restarts <= count:
                        time.sleep(0.01)
            time.sleep(choose.uniform(0, 0.05))
        ended.set()

    class Enough(Exception):
        pass

    def callback(local, _):
        if ended.is_set():
            raise Enough
        return True

    model = PPO("MlpPolicy", NoTransitionCrossesARestart(venv), n_steps=32, batch_size=64, n_epochs=1, seed=0)
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises(Enough), caplog.at_level(logging.WARNING, "jaxenvs.sb3"):
        model.learn(10_000_000, callback=callback)
    killer.join()
    assert venv.restarts == KILLS
    assert caplog.text.count("is restarted") == KILLS
    venv.close()
