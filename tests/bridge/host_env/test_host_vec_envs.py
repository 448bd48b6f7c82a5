"""The VecEnvs of the host: the contract of a Stable-Baselines3 VecEnv, beside SB3's own."""

import functools
import pickle

import chex
import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.monitor import Monitor

from bridge import GymVecEnv, NativeVecEnv, ProcessVecEnv, RayVectorEnv, SerialVecEnv
from tests.bridge.host_env.host_environments import OBSERVATION_SPACES, RAISE, Counting
from tests.bridge.host_env.references import assert_same_as_dummy_vec_env
from tests.bridge.host_env.vector_envs import ray_stand_in


class Native:
    """NativeVectorEnv of environments in Python."""

    def __init__(self, env_fns):
        self.envs = [make() for make in env_fns]
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space

    def reset_into(self, buffers, seeds):
        for index, env in enumerate(self.envs):
            observation, _ = env.reset(seed=None if seeds is None else int(seeds[index]))
            self._write(buffers.observation, index, observation)

    def step_into(self, actions, buffers):
        for index, env in enumerate(self.envs):
            observation, reward, *ends, _ = env.step(actions[index])
            buffers.reward[index], (buffers.terminated[index], buffers.truncated[index]) = reward, ends
            if any(ends):
                self._write(buffers.final_observation, index, observation)
                observation, _ = env.reset()
            self._write(buffers.observation, index, observation)

    def _write(self, batch, index, observation):
        jax.tree.map(lambda part, value: part.__setitem__(index, value), batch, observation)


def gym_vec_env(env_fns, mode):
    return GymVecEnv(SyncVectorEnv(env_fns, copy=False, autoreset_mode=mode))


BACKENDS = {
    "serial": SerialVecEnv,
    "process": functools.partial(ProcessVecEnv, envs_per_process=2),
    "ray": ray_stand_in.make,
    **{f"gym, {mode.name}": functools.partial(gym_vec_env, mode=mode) for mode in AutoresetMode},
    "native": lambda env_fns: NativeVecEnv(Native(env_fns)),
}
# A native environment has one attribute for all, and no infos.
HAVE_ATTRIBUTES = [name for name in BACKENDS if name != "native"]
PARAMETERS = [{"kind": kind} for kind in OBSERVATION_SPACES] + [
    *({"limit": 4, "tells": True}, {"limit": 5}, {"actions": "box"}),
    {"actions": "multi_binary", "kind": "dict"},
]


def options_of(backend):
    """Return the reset options that a VecEnv can pass to its three environments."""
    if backend == "native":
        return None
    return [{"low": 2}] * 3 if backend.startswith(("gym", "ray")) else [{"low": 0}, {}, {"low": 2}]


@pytest.fixture
def make(request):
    """Makes a VecEnv of three environments, and closes it in the end."""
    made = []

    def make(backend, **parameters):
        made.append(BACKENDS[backend]([functools.partial(Counting, **parameters)] * 3))
        return made[-1]

    yield make
    for venv in made:
        venv.close()


@pytest.fixture(scope="module", params=HAVE_ATTRIBUTES)
def venv(request):
    """One for all tests that leave it as it was."""
    venv = BACKENDS[request.param]([functools.partial(Counting, tells=True, render_mode="rgb_array")] * 3)
    yield venv
    venv.close()


@pytest.mark.parametrize(
    ("backend", "parameters"),
    [(backend, each) for backend in BACKENDS for each in PARAMETERS if backend != "native" or "tells" not in each],
    ids=str,
)
def test_it_does_what_dummy_vec_env_does_with_monitored_environments(make, backend, parameters):
    assert_same_as_dummy_vec_env(make(backend, **parameters), parameters, options_of(backend))


def test_episodes_of_monitored_environments_are_their_monitors(tmp_path):
    def monitored(index):
        return Monitor(Counting(), str(tmp_path / str(index)), info_keywords=())

    venv = SerialVecEnv([functools.partial(monitored, index) for index in range(2)])
    venv.reset()
    infos = [venv.step(np.ones(2, int))[3] for _ in range(5)][-1]
    assert [info["episode"]["r"] for info in infos] == [0.5, 0.5]
    assert all(env.get_episode_lengths() == [5] for env in venv.envs)


@pytest.mark.thorough(but=["dict-serial"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["box", "dict", "tuple"])
def test_what_a_step_returned_is_writable_and_never_written_to_again(make, backend, kind):
    venv = make(backend, kind=kind, reuses=True, tells=True, length=2)
    held, copies = [], []
    venv.reset()
    for _ in range(5):
        *arrays, infos = venv.step(np.ones(3, int))
        assert all(array.flags.writeable for array in jax.tree.leaves(arrays[:2]))
        held.append([*arrays, [dict(info) for info in infos]])
        copies.append(pickle.loads(pickle.dumps(held[-1])))
    for mine, copy in zip(held, copies, strict=True):
        chex.assert_trees_all_equal(mine, copy)
    observation, *_, infos = held[1]
    parts = zip(jax.tree.leaves(infos[0]["terminal_observation"]), jax.tree.leaves(observation), strict=True)
    assert not any(np.shares_memory(last, first) for last, first in parts)
    # Gymnasium's SyncVectorEnv keeps the array of an environment, which the reset has overwritten.
    if backend not in ("ray", "gym, SAME_STEP"):
        last = jax.tree.leaves(infos[0]["terminal_observation"])
        assert [vector[1] for vector in last if np.shape(vector) == (2,)] == [2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_takes_effect_at_the_next_reset_and_only_there(make, backend):
    venv = make(backend)
    assert list(venv.seed(3)) == [3, 4, 5]
    first, second = venv.reset(), venv.reset()
    assert not np.array_equal(first, second)
    venv.seed(4)
    venv.step(np.zeros(3, int))
    np.testing.assert_array_equal(venv.reset()[:2], first[1:])
    assert len(np.unique(first[:, 0])) == 3


def test_attributes_are_those_of_the_environments(venv):
    venv.reset()
    assert venv.get_attr("length") == [5, 5, 5]
    assert venv.has_attr("length")
    assert not venv.has_attr("lenth")
    with pytest.raises(AttributeError, match="lenth"):
        venv.get_attr("lenth", 1)
    venv.set_attr("length", 7, indices=[0, 2])
    assert venv.get_attr("length", [2, 1, 2]) == [7, 5, 7]
    venv.set_attr("length", 5)
    venv.step(np.ones(3, int))
    assert venv.env_method("add", 3, times=2) == [7, 7, 7]
    if not isinstance(getattr(venv, "vector_env", None), RayVectorEnv):  # which calls all or none
        assert venv.env_method("add", 3, indices=1) == [4]
    assert venv.env_is_wrapped(Monitor) == [True] * 3
    assert venv.env_is_wrapped(gymnasium.Wrapper, [0]) == [False]
    assert venv.action_space == Counting().action_space


def test_a_parameter_of_a_jax_environment_is_set_through_all_wrappers():
    venv = SerialVecEnv([lambda: Monitor(gymnasium.make("jaxenvs/CartPole-v1"))] * 2)
    other = SerialVecEnv([lambda: Monitor(gymnasium.make("jaxenvs/CartPole-v1"))] * 2)
    for each in (venv, other):
        each.seed(0)
        each.reset()
    venv.set_attr("gravity", 500.0, indices=1)
    assert venv.get_attr("gravity") == [other.get_attr("gravity")[0], 500.0]
    for _ in range(2):
        observations, expected = (each.step(np.ones(2, int))[0] for each in (venv, other))
    assert (observations != expected).any(1).tolist() == [False, True]
    for name in ("note", "action_space"):  # of the outermost wrapper, as SB3 does
        venv.set_attr(name, "mine")
        assert [getattr(env, name) for env in venv.envs] == ["mine", "mine"]
    assert venv.envs[0].unwrapped.action_space == venv.action_space


def test_pictures_are_tiled(venv):
    venv.reset()
    assert venv.render_mode == "rgb_array"
    assert venv.metadata["render_fps"] == 7
    assert len(venv.get_images()) == 3
    assert venv.render().shape == (12, 16, 3)


@pytest.mark.parametrize("actions", [[0, 1, 2], np.array([0, 1, 2], np.int32)], ids=["list", "int32"])
def test_actions_may_be_lists_and_of_other_dtypes(venv, actions):
    venv.reset()
    np.testing.assert_allclose(venv.step(actions)[1], [0, 0.1, 0.2], rtol=1e-6)


# --- What only processes have ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes():
    venv = ProcessVecEnv([Counting] * 3, envs_per_process=2)
    yield venv
    venv.close()


def test_a_worker_imports_neither_bridge_nor_what_takes_long(processes):
    assert processes.env_method("modules") == [[], [], []]
    assert len(processes.processes) == 2


def test_a_call_between_step_async_and_step_wait_disturbs_nothing(processes):
    processes.reset()
    processes.step_async(np.ones(3, int))
    assert processes.get_attr("count") == [1, 1, 1]
    np.testing.assert_array_equal(processes.step_wait()[0][:, 1], [1, 1, 1])


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (np.zeros(2, int), ValueError, r"actions must have shape \(3,\), got \(2,\)"),
        (np.zeros(3), TypeError, "actions must be int64 or cast"),
    ],
)
def test_actions_of_another_shape_or_kind_are_refused(processes, actions, error, message):
    processes.reset()
    with pytest.raises(error, match=message):
        processes.step(actions)
    np.testing.assert_array_equal(processes.step(np.zeros(3, int))[0][:, 1], [1, 1, 1])


def test_in_this_process_an_environment_that_raises_is_named():
    venv = SerialVecEnv([Counting] * 3)
    venv.reset()
    with pytest.raises(ArithmeticError, match="the pole broke") as error:
        venv.step(np.array([0, RAISE, 0]))
    assert error.value.__notes__ == ["Environment 1 raised this error."]


@pytest.mark.parametrize("count", [2, 4])
def test_in_this_process_there_must_be_an_action_for_each_environment(count):
    venv = SerialVecEnv([Counting] * 3)
    venv.reset()
    with pytest.raises(ValueError, match=f"actions must hold 3 actions, one for each environment, got {count}"):
        venv.step(np.zeros(count, int))


def test_in_this_process_a_new_list_of_environments_is_stepped():
    venv = SerialVecEnv([Counting] * 2)
    venv.reset()
    venv.envs = [Monitor(Counting(length=2)) for _ in range(2)]
    venv.reset()
    infos = [venv.step(np.ones(2, int))[3] for _ in range(2)][-1]
    assert [env.get_episode_lengths() for env in venv.envs] == [[2], [2]]
    assert [info["episode"]["r"] for info in infos] == [env.get_episode_rewards()[0] for env in venv.envs]
    venv.envs = [Counting(length=3), Counting(length=3)]
    venv.reset()
    assert [info["episode"]["l"] for info in [venv.step(np.ones(2, int))[3] for _ in range(3)][-1]] == [3, 3]


def test_in_this_process_rewards_are_kept_as_they_were():
    venv = SerialVecEnv([Counting] * 2)
    venv.reset()
    rewards = venv.step(np.ones(2, int))[1]
    rewards[:] = 2.0  # as SB3 writes into them
    np.testing.assert_array_equal(venv.buf_rews, np.float32([0.1, 0.1]))


def test_a_forked_copy_of_the_parent_does_not_end_the_workers(processes, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: 1)
        processes.close()
    assert processes.reset().shape == (3, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"envs_per_process": 0}, "envs_per_process must be a positive int, got 0"),
        ({"step_timeout": 0}, "step_timeout must be a finite number, above 0, got 0"),
        ({"on_worker_death": "ignore"}, "on_worker_death must be one of 'raise', 'restart', got 'ignore'"),
        ({"env_fns": []}, "the number of env_fns must be a positive int, got 0"),
    ],
)
def test_arguments_that_are_none_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ProcessVecEnv(**{"env_fns": [Counting]} | arguments)
