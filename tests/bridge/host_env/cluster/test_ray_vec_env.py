"""RayVecEnv over a stand-in for Ray: what it asks of Ray, and ProcessVecEnv's contract over another transport."""

import functools
import logging
import sys
from unittest import mock

import numpy as np
import pytest

from bridge import RayVecEnv, WorkerDied, WorkerError, make_vec_env
from tests.bridge.host_env.cluster import ray_stand_in
from tests.bridge.host_env.host_environments import HANG, RAISE, SIGKILL, Counting
from tests.bridge.host_env.test_host_vec_envs import assert_same_as_dummy_vec_env
from tests.bridge.vec_env.test_jax_vec_env import assert_same_step


@pytest.fixture
def ray():
    ray = ray_stand_in.Ray()
    yield ray
    for actor in ray.actors:
        ray.kill(actor)


@pytest.fixture
def start(ray):
    """Makes a RayVecEnv of three environments in two actors, with its first episode begun."""

    def start(**arguments):
        venv = ray_stand_in.make([functools.partial(Counting, length=50)] * 3, ray=ray, **arguments)
        venv.seed(0)
        venv.reset()
        return venv

    return start


@pytest.mark.parametrize(
    "parameters",
    [{"limit": 4, "tells": True}, {"kind": "dict", "actions": "multi_binary"}, {"kind": "tuple", "actions": "box"}],
    ids=str,
)
def test_it_does_what_dummy_vec_env_does_with_monitored_environments(ray, parameters):
    assert_same_as_dummy_vec_env(
        ray_stand_in.make([functools.partial(Counting, **parameters)] * 3, ray=ray), parameters
    )


def test_a_step_is_one_call_of_each_actor_with_its_actions(ray, start):
    venv = start()
    for actor in ray.actors:
        actor.calls.clear()
    venv.step(np.array([1, 2, 3]))
    calls = [call for actor in ray.actors for call in actor.calls]
    assert [name for name, *_ in calls] == ["do", "do"]
    assert [actions.tolist() for *_, actions in calls] == [[1, 2], [3]]


def test_an_actor_imports_neither_bridge_nor_what_takes_long(start):
    assert start().env_method("modules") == [[], [], []]


def test_ray_starts_nothing_again_and_repeats_no_call(ray, start):
    start(num_cpus=2, actor_options={"resources": {"licence": 1}})
    expected = {"num_cpus": 2, "resources": {"licence": 1}, "max_restarts": 0, "max_task_retries": 0}
    assert ray.options == [expected, expected]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"actor_options": {"max_restarts": 3}}, ValueError, "actor_options must not contain 'max_restarts', got"),
        ({"actor_options": [1]}, TypeError, "actor_options must be a dict"),
        ({"num_cpus": -1}, ValueError, "num_cpus must be a finite number, at least 0, got -1"),
        ({"envs_per_actor": 0}, ValueError, "envs_per_actor must be a positive int, got 0"),
    ],
)
def test_arguments_that_are_none_are_named_before_ray_is_asked_for(arguments, error, message):
    with mock.patch.dict(sys.modules, ray=None), pytest.raises(error, match=message):
        RayVecEnv([Counting], **arguments)


def test_without_ray_it_says_what_to_install():
    message = r'backend="ray" needs Ray, but ray is not installed: pip install "jaxenvs\[ray\]"'
    with mock.patch.dict(sys.modules, ray=None), pytest.raises(ImportError, match=message):
        make_vec_env(Counting, 2, backend="ray")


def test_make_vec_env_makes_one_and_joins_a_cluster_once(ray):
    kwargs = {"envs_per_actor": 2, "address": "auto"}
    with mock.patch.dict(sys.modules, ray=ray):
        ours = [make_vec_env(Counting, 3, seed=4, backend="ray", vec_env_kwargs=kwargs) for _ in range(2)][1]
    assert isinstance(ours, RayVecEnv)
    assert ray.inits == ["auto"]
    assert len(ray.actors) == 4
    serial = make_vec_env(Counting, 3, seed=4, backend="serial")
    np.testing.assert_array_equal(ours.reset(), serial.reset())
    assert_same_step(ours.step(np.ones(3, int)), serial.step(np.ones(3, int)))


# --- Faults ---------------------------------------------------------------------------------------------------------


def test_an_environment_that_raises_is_named_with_its_traceback_and_all_are_shut_down(ray, start, tmp_path):
    venv = start()
    venv.set_attr("closed_file", tmp_path / "closed")
    with pytest.raises(WorkerError, match=r"(?s)Environment 1 raised.*ArithmeticError: the pole broke") as error:
        venv.step(np.array([0, RAISE, 0]))
    assert error.value.lanes == [1]
    assert all(actor.process.poll() is not None for actor in ray.actors)
    assert (tmp_path / "closed").read_text() == "closed\n" * 3
    with pytest.raises(RuntimeError, match="This RayVecEnv is closed"):
        venv.reset()


def test_an_actor_that_dies_is_named_with_what_ray_says_and_all_are_shut_down(ray, start):
    venv = start()
    with pytest.raises(
        WorkerDied, match=r"The actor of environments 0 to 1 died: Its process \d+ has died\.$"
    ) as error:
        venv.step(np.array([0, SIGKILL, 0]))
    assert (error.value.lanes, error.value.exit_code) == ([0, 1], None)
    assert all(actor.process.poll() is not None for actor in ray.actors)


def test_a_step_that_takes_longer_than_step_timeout_is_named_and_its_actor_killed(ray, start):
    venv = start(step_timeout=0.3)
    venv.step(np.zeros(3, int))
    with pytest.raises(
        WorkerDied, match=r"The actor of environment 2 did not finish its step within step_timeout = 0.3 s"
    ):
        venv.step(np.array([0, 0, HANG]))
    assert all(actor.process.poll() is not None for actor in ray.actors)


@pytest.mark.parametrize("fault", [SIGKILL, HANG])
def test_an_actor_that_is_started_again_truncates_its_lanes_and_no_others(ray, start, caplog, fault):
    venv = start(on_worker_death="restart", step_timeout=1)
    before = venv.step(np.full(3, 3))[0]
    with caplog.at_level(logging.WARNING, "bridge"):
        after, rewards, dones, infos = venv.step(np.array([fault, 3, 3]))
    assert dones.tolist() == [True, True, False]
    np.testing.assert_allclose(rewards, [0, 0, 0.3])
    for lane in (0, 1):
        assert infos[lane]["TimeLimit.truncated"]
        np.testing.assert_array_equal(infos[lane]["terminal_observation"], before[lane])
        assert infos[lane]["episode"]["l"] == 2
    np.testing.assert_array_equal(after[:, 1], [0, 0, 2])
    assert (venv.restarts, len(ray.actors)) == (1, 3)
    assert "The actor of environments 0 to 1 d" in caplog.text
    assert "restarted with new episodes (restart 1)" in caplog.text
    later, _, dones, _ = venv.step(np.zeros(3, int))
    np.testing.assert_array_equal(later, np.stack([after[:, 0], after[:, 1] + 1], 1))
    assert not dones.any()


def test_lanes_of_an_actor_that_died_between_steps_are_truncated_in_the_next(ray, start):
    venv = start(on_worker_death="restart")
    before = venv.step(np.ones(3, int))[0]
    ray.kill(ray.actors[1])
    assert venv.get_attr("count") == [1, 1, 0]  # it is started again here
    after, _, dones, infos = venv.step(np.ones(3, int))
    assert dones.tolist() == [False, False, True]
    np.testing.assert_array_equal(infos[2]["terminal_observation"], before[2])
    np.testing.assert_array_equal(after[:, 1], [2, 2, 0])


def test_a_step_wait_that_was_interrupted_can_be_called_again(ray, start, monkeypatch):
    venv = start()
    venv.step_async(np.ones(3, int))
    with monkeypatch.context() as patch:
        patch.setattr(ray, "get", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            venv.step_wait()
    np.testing.assert_array_equal(venv.step_wait()[0][:, 1], [1, 1, 1])
    venv.step_async(np.ones(3, int))  # and one that is never called leaves nothing behind
    np.testing.assert_array_equal(venv.reset()[:, 1], [0, 0, 0])
    np.testing.assert_array_equal(venv.step(np.ones(3, int))[0][:, 1], [1, 1, 1])


def test_once_ray_has_been_shut_down_closing_starts_nothing(ray, start):
    venv = start()
    calls = [len(actor.calls) for actor in ray.actors]
    ray.inits.clear()
    venv.close()
    assert [len(actor.calls) for actor in ray.actors] == calls
