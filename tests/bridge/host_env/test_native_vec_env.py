"""NativeVecEnv: environments that write into memory they are given; and the example in C."""

import pickle
import shutil
import sys

import chex
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import obs_as_tensor

from bridge import NativeVecEnv, NativeVectorEnv
from bridge.host_env.native import ALIGNMENT, MOST_BUFFERS
from bridge.observations import parts_of
from tests.bridge.host_env.references import assert_steps_are_of_cartpole, example_at
from tests.bridge.vec_env.test_jax_vec_env import sample_actions


class Counting:
    """Counts steps from its seed on. Environment i ends after i + 2 of them, and is cut off after 3."""

    gravity = 9.8

    def __init__(self, num_envs=3):
        part = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict({"pair": part, "number": spaces.Discrete(99)})
        self.action_space = spaces.Discrete(3)
        self.num_envs = num_envs
        self.count, self.start, self.written = np.zeros(num_envs, int), np.zeros(num_envs, int), []

    def reset_into(self, buffers, seeds):
        self.start = self.start + 1 if seeds is None else seeds.astype(int)
        self.count[:] = 0
        self._observe(buffers.observation)

    def step_into(self, actions, buffers):
        assert (actions.dtype, actions.flags.c_contiguous) == (np.int64, True)
        self.written.append(buffers)
        self.count += 1
        buffers.reward[:] = actions
        buffers.terminated[:] = self.count == np.arange(self.num_envs) + 2
        buffers.truncated[:] = self.count == 3
        self._observe(buffers.final_observation)
        self.count[buffers.terminated | buffers.truncated] = 0
        self._observe(buffers.observation)

    def _observe(self, observation):
        observation["pair"][:] = np.stack([self.count, self.start], axis=1)
        observation["number"][:] = self.count


class CountingLater(Counting):
    """The same environment with `send` and `recv`."""

    def step_into(self, actions, buffers):
        raise AssertionError("step_into was called where there are send and recv.")

    def send(self, actions, buffers):
        self.sent = actions, buffers

    def recv(self):
        super().step_into(*self.sent)


@pytest.fixture(params=[Counting, CountingLater])
def venv(request):
    venv = NativeVecEnv(request.param())
    venv.seed(7)
    venv.reset()
    return venv


def test_a_step_gives_what_the_environment_wrote(venv):
    steps = [venv.step(np.array([0, 1, 2])) for _ in range(3)]
    observations = [step[0] for step in steps]
    assert [observation["pair"].tolist() for observation in observations] == [
        [[1, 7], [1, 8], [1, 9]],
        [[0, 7], [2, 8], [2, 9]],
        [[1, 7], [0, 8], [0, 9]],
    ]
    assert observations[1]["number"].tolist() == [0, 2, 2]
    assert observations[1]["number"].dtype == np.int64
    assert (steps[0][1].tolist(), steps[0][1].dtype) == ([0, 1, 2], np.float32)
    assert [step[2].tolist() for step in steps] == [[False] * 3, [True, False, False], [False, True, True]]
    both, truncated = steps[2][3][1:]
    assert (both["TimeLimit.truncated"], truncated["TimeLimit.truncated"]) == (False, True)
    assert (truncated["episode"]["r"], truncated["episode"]["l"]) == (6, 3)
    np.testing.assert_equal(truncated["terminal_observation"], {"pair": np.float32([3, 9]), "number": 3})
    assert steps[0][3] == [{"TimeLimit.truncated": False}] * 3


def test_seeds_are_those_of_the_environments_and_only_for_the_next_reset(venv):
    assert venv.reset()["pair"][:, 1].tolist() == [8, 9, 10]
    venv.seed(3)
    assert venv.reset()["pair"][:, 1].tolist() == [3, 4, 5]


def test_what_somebody_holds_is_never_written_to_again(venv):
    held, copies = [], []
    for _ in range(2 * MOST_BUFFERS):
        *arrays, infos = venv.step(np.array([0, 1, 2]))
        held.append((arrays, infos))
        copies.append(pickle.loads(pickle.dumps(arrays)))
    for step, ((arrays, infos), copy) in enumerate(zip(held, copies)):
        chex.assert_trees_all_equal(arrays, copy)
        if arrays[2][2]:  # infos, which are read only now, are of their step
            assert infos[2]["terminal_observation"]["pair"].tolist() == [3, 9], step
            assert infos[2]["episode"]["r"] == 6


def test_two_buffers_are_enough_for_who_holds_the_last_observation(venv):
    for _ in range(10):
        last = venv.step(np.zeros(3, int))[0]  # until the next step gave another
    assert last["pair"].shape == (3, 2)
    assert len({id(buffers) for buffers in venv.env.written}) == 2


def test_where_references_are_not_counted_no_memory_is_used_twice(venv, monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    for _ in range(2 * MOST_BUFFERS):
        venv.step(np.zeros(3, int))
    assert len({id(buffers) for buffers in venv.env.written}) == 2 * MOST_BUFFERS


@pytest.mark.parametrize("hold", [torch.as_tensor, lambda array: array[1:2], lambda array: array.T, memoryview])
def test_whoever_holds_a_part_holds_the_whole(venv, hold):
    held = hold(venv.step(np.zeros(3, int))[0]["pair"])
    copy = np.asarray(held).copy()
    for _ in range(4):
        venv.step(np.zeros(3, int))
    np.testing.assert_array_equal(np.asarray(held), copy)


def test_the_memory_is_the_tensor_that_a_policy_reads(venv):
    observation = venv.step(np.zeros(3, int))[0]
    written = venv.env.written[-1]
    for name, tensor in obs_as_tensor(observation, torch.device("cpu")).items():
        assert tensor.data_ptr() == written.observation[name].ctypes.data


def test_buffers_are_aligned_and_row_major():
    env = Counting(5)
    NativeVecEnv(env).reset()
    venv = NativeVecEnv(env)
    venv.reset()
    venv.step(np.zeros(5, int))
    (buffers,) = env.written
    arrays = [*parts_of(buffers.observation), buffers.reward, buffers.terminated, buffers.truncated]
    arrays += parts_of(buffers.final_observation)
    for i, array in enumerate(arrays):
        assert array.ctypes.data % ALIGNMENT == 0
        assert (array.flags.c_contiguous, array.flags.writeable, len(array)) == (True, True, 5)
        assert not any(np.shares_memory(array, other) for other in arrays[i + 1 :])


def test_attributes_are_those_of_the_environment(venv):
    assert isinstance(venv.env, NativeVectorEnv)
    assert venv.get_attr("gravity", [0, 1]) == [9.8, 9.8]
    venv.set_attr("gravity", 5.0)
    assert venv.env.gravity == 5.0
    assert venv.render_mode is None
    assert venv.env_is_wrapped(Monitor) == [True] * 3
    venv.close()


@pytest.mark.parametrize("missing", ["reset_into", "num_envs"])
def test_what_is_missing_of_the_protocol_is_named(missing):
    names = {"observation_space", "action_space", "num_envs", "reset_into", "step_into"} - {missing}
    incomplete = type("Incomplete", (), {name: None for name in names})()
    with pytest.raises(TypeError, match=f"env must be a NativeVectorEnv, but Incomplete has no {missing}"):
        NativeVecEnv(incomplete)


def test_reset_options_are_refused(venv):
    with pytest.raises(ValueError, match=r"A NativeVecEnv accepts no reset options, got \{'low': 0\}"):
        venv.set_options({"low": 0})


# --- The example ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example():
    return example_at("native_c/cartpole.py")


@pytest.fixture(scope="module")
def library(example, tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler, cc")
    return example.build(tmp_path_factory.mktemp("native_c"))


def test_each_transition_of_the_example_is_one_of_cartpole(example, library):
    venv = NativeVecEnv(example.CCartPole(library, 5))
    assert assert_steps_are_of_cartpole(venv, 80, limit=500)[0] > 10


def test_the_example_is_cut_off_after_500_steps(example, library):
    venv = NativeVecEnv(example.CCartPole(library, 2))
    venv.seed(0)
    observation = venv.reset()
    for _ in range(500):
        observation, _, dones, infos = venv.step((observation @ [0.1, 0.3, 1, 0.5] > 0).astype(int))
    assert dones.all()
    assert [info["TimeLimit.truncated"] for info in infos] == [True, True]
    assert [info["episode"]["l"] for info in infos] == [500, 500]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_do_not_change_what_the_example_does(example, library, num_threads):
    venv, reference = (NativeVecEnv(example.CCartPole(library, 200, threads)) for threads in (num_threads, 0))
    for each in (venv, reference):
        each.seed(3)
    np.testing.assert_array_equal(venv.reset(), reference.reset())
    for actions in sample_actions(venv, 40):
        ours, theirs = venv.step(actions), reference.step(actions)
        chex.assert_trees_all_equal(ours[:3], theirs[:3])
    venv.close()


def test_a_training_on_the_example_needs_the_memory_of_three_steps(example, library):
    venv = NativeVecEnv(example.CCartPole(library, 32, 2))
    PPO("MlpPolicy", venv, n_steps=32, batch_size=256, n_epochs=1, seed=0).learn(2048)
    assert len(venv._pool._pool) <= 3
