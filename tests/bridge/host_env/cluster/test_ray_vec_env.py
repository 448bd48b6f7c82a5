"""RayVecEnv over a stand-in for Ray: what it asks of Ray, and ProcessVecEnv's contract over another transport."""

import sys
from unittest import mock

import numpy as np
import pytest

from bridge import RayVecEnv, WorkerDied, make_vec_env
from tests.bridge.host_env.conftest import Actors
from tests.bridge.host_env.host_environments import SIGKILL, Counting
from tests.bridge.vec_env.test_jax_vec_env import assert_same_step


@pytest.fixture
def workers():
    return Actors()


@pytest.fixture
def ray(workers):
    yield workers.ray
    for actor in workers.ray.actors:
        workers.ray.kill(actor)


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


def test_an_actor_that_dies_is_named_with_what_ray_says_and_all_are_shut_down(ray, start):
    venv = start()
    with pytest.raises(
        WorkerDied, match=r"The actor of environments 0 to 1 died: Its process \d+ has died\.$"
    ) as error:
        venv.step(np.array([0, SIGKILL, 0]))
    assert (error.value.env_indices, error.value.exit_code) == ([0, 1], None)
    assert all(actor.process.poll() is not None for actor in ray.actors)


def test_once_ray_has_been_shut_down_closing_starts_nothing(ray, start):
    venv = start()
    calls = [len(actor.calls) for actor in ray.actors]
    ray.inits.clear()
    venv.close()
    assert [len(actor.calls) for actor in ray.actors] == calls
