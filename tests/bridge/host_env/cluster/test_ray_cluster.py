"""RayVecEnv on Ray itself: a cluster of two nodes on this machine, of which one goes."""

import functools
import logging

import numpy as np
import pytest

from bridge import PPO, RayVecEnv, WorkerDied, make_vec_env
from tests.bridge.host_env.host_environments import IMAGE, SIGKILL, Counting
from tests.bridge.host_env.processes.test_worker_faults import NoTransitionCrossesARestart
from tests.bridge.host_env.references import assert_same_as_dummy_vec_env

ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "jaxenvs[ray]"')
cluster_utils = pytest.importorskip("ray.cluster_utils")

MEMORY = 80 * 2**20  # of a node's object store, in bytes: the least that Ray allows is 75 MB
SPREAD = {"scheduling_strategy": "SPREAD"}


@pytest.fixture(scope="module")
def cluster():
    """A cluster whose head runs no actors. It takes seconds to start, so all tests have the same."""
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def second(cluster):
    """A further node; gone afterwards."""
    node = cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
    cluster.wait_for_nodes()
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


@pytest.mark.parametrize(
    "parameters", [{"limit": 4, "tells": True}, pytest.param({"kind": "dict"}, marks=pytest.mark.thorough)], ids=str
)
def test_it_does_what_dummy_vec_env_does_with_monitored_environments(cluster, parameters):
    venv = RayVecEnv([functools.partial(Counting, **parameters)] * 3, 2)
    assert venv.env_method("modules") == [[], [], []]
    assert_same_as_dummy_vec_env(venv, parameters)
    venv.close()


def test_an_actor_that_is_killed_is_started_again_with_new_episodes(cluster):
    venv = RayVecEnv([functools.partial(Counting, length=50)] * 3, 2, on_worker_death="restart")
    venv.reset()
    _, _, dones, _ = venv.step(np.array([0, SIGKILL, 0]))
    assert dones.tolist() == [True, True, False]
    assert venv.step(np.zeros(3, int))[0][:, 1].tolist() == [1, 1, 2]
    venv.close()


class Picture(Counting):
    """An observation of a megabyte, which Ray keeps in the store of the node."""

    def __init__(self):
        super().__init__()
        self.observation_space = type(IMAGE)(0, 255, (2**10, 2**10), np.uint8)

    def _observe(self):
        return np.full((2**10, 2**10), self.count, np.uint8)


@pytest.mark.thorough
def test_large_observations_come_whole(cluster):
    venv = RayVecEnv([Picture] * 2, 2)
    venv.reset()
    for count in (1, 2):
        assert (venv.step(np.zeros(2, int))[0] == count).all()
    venv.close()


@pytest.mark.thorough
def test_a_node_that_is_gone_is_named(cluster, second):
    venv = RayVecEnv([Counting] * 4, 2, num_cpus=1, actor_options=SPREAD)
    venv.reset()
    cluster.remove_node(second)
    with pytest.raises(WorkerDied, match=r"The actor of environments \d to \d died: .* node"):
        venv.step(np.zeros(4, int))


@pytest.mark.thorough
def test_a_training_goes_on_while_a_node_goes(cluster, second, caplog):
    """Its environments begin anew on the other node, and no transition goes from one life of theirs to the next."""
    kwargs = {"envs_per_actor": 2, "num_cpus": 1, "actor_options": SPREAD, "on_worker_death": "restart"}
    make = functools.partial(Counting, kind="box", actions="box", length=50)
    venv = make_vec_env(make, 4, seed=0, backend="ray", vec_env_kwargs=kwargs)
    nodes = venv.env_method("node")
    assert len(set(nodes)) == 2
    steps = 0

    def callback(local, _):
        nonlocal steps
        steps += 1
        if steps == 20:
            cluster.remove_node(second)
        return True

    with caplog.at_level(logging.WARNING, "bridge"):
        PPO("MlpPolicy", NoTransitionCrossesARestart(venv), n_steps=32, batch_size=64, n_epochs=1, seed=0).learn(
            512, callback=callback
        )
    assert venv.restarts == 1
    assert caplog.text.count("is restarted") == 1
    assert len(set(venv.env_method("node"))) == 1
    venv.close()
