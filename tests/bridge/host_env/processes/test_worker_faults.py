"""Failures of the processes of a ProcessVecEnv; test_worker_vec_env has more of them."""

import contextlib
import functools
import logging
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.vec_env import VecEnvWrapper

from bridge import PPO, ProcessVecEnv, SerialVecEnv, WorkerDied, WorkerError, factory, make_vec_env
from bridge.host_env.processes import process_vec_env
from tests.bridge.host_env.host_environments import EXIT, HANG, SEGMENTATION_FAULT, SIGKILL, Counting, Talkative


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


# --- Started again --------------------------------------------------------------------------------------------------


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


def test_with_a_step_timeout_a_reset_that_hangs_is_named(monkeypatch):
    class HangsInReset(Counting):
        def reset(self, **arguments):
            time.sleep(60)

    monkeypatch.setattr(process_vec_env, "SECONDS_TO_BEGIN", 0.5)
    with pytest.raises(WorkerDied, match=r"The process of environment 0 did not finish its reset within 0.5 s"):
        ProcessVecEnv([HangsInReset], step_timeout=0.2).reset()


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
    monkeypatch.setattr(factory, "ProcessVecEnv", lambda env_fns: SerialVecEnv(made.extend(env_fns) or env_fns))
    venv = make_vec_env(functools.partial(Counting, length=1), 1, monitor_dir=tmp_path, backend="process")
    for env in (venv.envs[0], made[0].again()):
        env.reset()
        env.step(0)
    assert load_results(tmp_path)["l"].tolist() == [1, 1]


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
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.thorough)])
def test_training_goes_on_while_random_workers_are_killed(kills, caplog):
    venv = ProcessVecEnv(
        [functools.partial(Counting, kind="box", actions="box", length=50)] * 4, on_worker_death="restart"
    )
    choose, ended = random.Random(0), threading.Event()

    def kill():
        for count in range(kills):
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
    assert venv.restarts == kills
    assert caplog.text.count("is restarted") == kills
    venv.close()
