"""RayVectorEnv: over a stand-in for Ray, and over Ray itself where it is installed, with a node that goes.

test_host_vec_envs.py holds it to the contract of VecEnvs, over the stand-in.
"""

import functools
import sys
from unittest import mock

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from bridge import GymVecEnv, MaskablePPO, RayVectorEnv, WorkerDied, make_vec_env
from tests.bridge.host_env.host_environments import BOX, RAISE, SIGKILL, Counting
from tests.bridge.host_env.references import assert_same_as_dummy_vec_env
from tests.bridge.host_env.vector_envs.ray_stand_in import Ray


@pytest.fixture
def ray():
    with mock.patch.dict(sys.modules, ray=Ray()):
        yield sys.modules["ray"]


def start(*parameters, **arguments):
    """Three environments in two actors, with their first episodes begun."""
    env_fns = [functools.partial(Counting, length=50)] * 3
    venv = GymVecEnv(RayVectorEnv(*(parameters or (env_fns, 2)), **arguments))
    venv.seed(0)
    venv.reset()
    return venv


def test_infos_that_few_environments_have_reach_these(ray):
    class Uneven(Counting):
        def step(self, action):
            return *super().step(action)[:4], ({"hit": {"at": np.full(2, action)}} if action else {})

    venv = start([Uneven] * 3, 2)
    infos = list(venv.step(np.array([0, 0, 2]))[3])
    assert [sorted(info) for info in infos] == [["TimeLimit.truncated"]] * 2 + [["TimeLimit.truncated", "hit"]]
    np.testing.assert_array_equal(infos[2]["hit"]["at"], [2, 2])


class Masked(gymnasium.Env):
    """Ends the episode at an action that is not legal."""

    observation_space, action_space = BOX, spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert action == 1
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def action_masks(self):
        return np.array([False, True, False])


@pytest.mark.thorough
def test_masks_of_actions_are_asked_for(ray):
    venv = make_vec_env(Masked, 2, backend="ray")
    MaskablePPO("MlpPolicy", venv, n_steps=4, batch_size=4, n_epochs=1).learn(8)


def test_ray_starts_nothing_again_and_repeats_no_call(ray):
    start(actor_options={"resources": {"licence": 1}})
    expected = {"num_cpus": 1, "resources": {"licence": 1}, "max_restarts": 0, "max_task_retries": 0}
    assert ray.options == [expected, expected]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"actor_options": [1]}, TypeError, "actor_options must be a dict"),
        ({"envs_per_actor": 0}, ValueError, "envs_per_actor must be a positive int, got 0"),
        ({"step_timeout": 0}, ValueError, "step_timeout must be"),
        ({"env_fns": [Counting, functools.partial(Counting, kind="image")]}, ValueError, "with the same spaces, got"),
    ],
)
def test_arguments_that_are_none_are_named(ray, arguments, error, message):
    with pytest.raises(error, match=message):
        RayVectorEnv(**{"env_fns": [Counting], **arguments})


def test_without_ray_it_says_what_to_install():
    message = r'backend="ray" needs ray: pip install "jaxenvs\[ray\]"'
    with mock.patch.dict(sys.modules, ray=None), pytest.raises(ImportError, match=message):
        make_vec_env(Counting, 2, backend="ray")


def test_make_vec_env_seeds_as_it_does_in_this_process(ray):
    ours = make_vec_env(Counting, 3, seed=4, backend="ray", vec_env_kwargs={"envs_per_actor": 2})
    serial = make_vec_env(Counting, 3, seed=4, backend="serial")
    assert len(ray.actors) == 2
    np.testing.assert_array_equal(ours.reset(), serial.reset())
    assert ours.env_method("drawn_action") == serial.env_method("drawn_action")


def test_monitors_of_actors_count_episodes(ray, tmp_path):
    venv = make_vec_env(functools.partial(Counting, length=2), 2, monitor_dir=str(tmp_path), backend="ray")
    venv.reset()
    venv.step(np.ones(2, int))
    assert [info["episode"]["l"] for info in venv.step(np.ones(2, int))[3]] == [2, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.monitor.csv", "1.monitor.csv"]


# --- Faults ---------------------------------------------------------------------------------------------------------


def test_an_environment_that_raises_is_named_and_reset_begins_anew(ray):
    venv = start()
    with pytest.raises(ArithmeticError, match="the pole broke") as error:
        venv.step(np.array([0, 0, RAISE]))
    assert error.value.__notes__ == ["One of environments 2 raised this error."]
    with pytest.raises(RuntimeError, match="Call reset"):
        venv.step(np.zeros(3, int))
    assert venv.reset()[:, 1].tolist() == [0, 0, 0]


def test_an_actor_that_dies_is_named_with_what_ray_says_and_all_are_ended(ray):
    venv = start()
    ray.dead.add(ray.actors[0])
    with pytest.raises(WorkerDied, match="The actor of environments 0, 1 died: its node has gone") as error:
        venv.step(np.zeros(3, int))
    assert (error.value.env_indices, error.value.exit_code) == ([0, 1], None)
    assert ray.dead == set(ray.actors)


def test_an_actor_that_is_late_counts_as_dead(ray):
    venv = start(step_timeout=2)
    ray.late.add(ray.actors[1])
    with pytest.raises(WorkerDied, match=r"actor of environments 2 did not finish its step within step_timeout = 2 s"):
        venv.step(np.zeros(3, int))
    assert ray.dead == set(ray.actors)


def test_once_ray_has_been_shut_down_closing_starts_nothing(ray):
    venv = start()
    ray.on = False
    venv.close()


# --- Ray itself -----------------------------------------------------------------------------------------------------

MEMORY = 80 * 2**20  # of a node's object store, in bytes: the least that Ray allows is 75 MB


@pytest.fixture(scope="module")
def cluster():
    """A cluster whose head runs no actors. It takes seconds to start, so all tests have the same."""
    reals = pytest.importorskip("ray", reason='Ray is not installed: pip install "jaxenvs[ray]"')
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = pytest.importorskip("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
    reals.init(address=cluster.address, log_to_driver=False)
    yield cluster
    reals.shutdown()
    cluster.shutdown()


def test_ray_does_what_dummy_vec_env_does_and_imports_little(cluster):
    parameters = {"limit": 4, "tells": True}
    venv = GymVecEnv(RayVectorEnv([functools.partial(Counting, **parameters)] * 3, 2))
    assert venv.env_method("modules") == [[], [], []]
    assert_same_as_dummy_vec_env(venv, parameters, [{"low": 2}] * 3)
    with pytest.raises(AttributeError, match="no_such"):
        venv.get_attr("no_such")
    with pytest.raises(ArithmeticError, match="the pole broke"):
        venv.step(np.array([0, 0, RAISE]))
    venv.reset()
    with pytest.raises(WorkerDied, match="The actor of environments 0, 1 died"):
        venv.step(np.array([0, SIGKILL, 0]))


def test_an_actor_that_hangs_on_ray_is_named(cluster):
    venv = start(step_timeout=1)
    with pytest.raises(WorkerDied, match=r"actor of environments 2 did not finish its step within step_timeout = 1 s"):
        venv.step(np.array([0, 0, 8]))


@pytest.mark.thorough
def test_a_node_that_is_gone_is_named(cluster):
    node = cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
    cluster.wait_for_nodes()
    venv = start([Counting] * 4, 2, actor_options={"scheduling_strategy": "SPREAD"})
    cluster.remove_node(node)
    with pytest.raises(WorkerDied, match=r"(?s)The actor of environments \d, \d died: .* node"):
        venv.step(np.zeros(4, int))
