"""GymVecEnv: whose memory observations are in, and what native vector environments add to the contract of VecEnvs."""

import functools
import sys

import chex
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from stable_baselines3.common.monitor import Monitor

from bridge import GymVecEnv, JaxVecEnv
from jaxenvs import TimeLimit, VectorEnv
from jaxenvs.gym import GymnasiumVectorEnv
from tests.bridge.host_env.host_environments import Counting
from tests.bridge.host_env.references import assert_same_as_dummy_vec_env, assert_steps_are_of_cartpole
from tests.bridge.vec_env.test_jax_vec_env import assert_same_step, sample_actions
from tests.environments import Counter

MODES = list(AutoresetMode)
OPTIONS = [{"low": 2}] * 3  # which Gymnasium has for all environments alike


class Own(gymnasium.vector.VectorEnv):
    """Small custom vector environment in which an episode of environment i lasts i + 2 steps.

    Args:
      hand_out: from the batch of observations, which is the same memory in every step, to what `step` returns.
    """

    def __init__(self, num_envs=3, mode=AutoresetMode.SAME_STEP, hand_out=np.copy, reads_mask=True):
        self.num_envs, self.hand_out, self.reads_mask = num_envs, hand_out, reads_mask
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.count, self.observation = np.zeros(num_envs, int), np.zeros((num_envs, 1), np.float32)
        self.score = np.zeros(num_envs)
        self.gravity, self.received = 9.8, None

    def reset(self, *, seed=None, options=None):
        mask = options.get("reset_mask") if options and self.reads_mask else None
        self.count[slice(None) if mask is None else mask] = 0
        return self._observe(), {}

    def step(self, actions):
        self.received = actions
        self.count += 1
        ended = self.count == np.arange(self.num_envs) + 2
        self.score[:] = 10 * self.count
        info = {"score": self.score, "odd": self.count, "_odd": self.count % 2 == 1, "version": "1"}
        if self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
            info |= {"final_obs": np.copy(self._observe()), "final_info": {"score": self.score.copy()}}
            self.count[ended] = 0
        return self._observe(), np.ones(self.num_envs), ended, np.zeros(self.num_envs, bool), info

    def _observe(self):
        self.observation[:, 0] = self.count
        return self.hand_out(self.observation)


# --- The contract ---------------------------------------------------------------------------------------------------


# A fork of a process in which JAX has threads may hang.
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_it_does_the_same_with_environments_in_other_processes(mode):
    parameters = {"kind": "dict", "limit": 4, "tells": True}
    envs = [functools.partial(Counting, **parameters)] * 3
    ours = GymVecEnv(AsyncVectorEnv(envs, context="forkserver", autoreset_mode=mode))
    try:
        assert_same_as_dummy_vec_env(ours, parameters, OPTIONS)
        ours.step_async(np.zeros(3, int))
        assert ours.vector_env._state.value == "step"  # under way: the workers have their actions
        ours.step_wait()
        assert ours.get_attr("length", [0, 2]) == [5, 5]
        ours.set_attr("length", 7, indices=1)
        assert ours.get_attr("length") == [5, 7, 5]
        assert ours.env_method("add", 3) == [4, 4, 4]
        with pytest.raises(
            ValueError, match=r"indices must be None, .* calls a method for all environments, got \[1\]"
        ):
            ours.env_method("add", 3, indices=1)
    finally:
        ours.close()


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_over_jaxenvs_own_vector_environment_it_is_a_jax_vec_env(mode):
    env = TimeLimit(Counter(observation_kind="dict"), 4)
    ours, reference = GymVecEnv(GymnasiumVectorEnv(VectorEnv(env, 3, mode))), JaxVecEnv(env, 3)
    ours.seed(5), reference.seed(5)
    chex.assert_trees_all_close(ours.reset(), reference.reset(), atol=1e-6)
    for actions in sample_actions(ours, 10):
        assert_same_step(ours.step(actions), reference.step(actions))


def test_no_step_of_gymnasiums_own_native_environment_is_a_dummy():
    """Its auto-reset is NEXT_STEP, and it has no `reset_mask`."""
    venv = GymVecEnv(gymnasium.make_vec("CartPole-v1", 8, "vector_entry_point", max_episode_steps=20))
    assert isinstance(venv.vector_env, CartPoleVectorEnv)
    assert min(assert_steps_are_of_cartpole(venv, 60, limit=20)) > 3


def test_dones_are_the_environments_own_and_not_written_to_again():
    venv = GymVecEnv(Own())
    venv.reset()
    steps = [venv.step(np.zeros(3, int)) for _ in range(12)]
    assert np.sum([step[2] for step in steps], axis=0).tolist() == [6, 4, 3]
    assert {step[1].dtype for step in steps} == {np.dtype(np.float32)}
    steps[0][1][0] = 7  # SB3 adds to the rewards of truncated episodes
    assert steps[1][1][0] == 1


# --- Whose memory ---------------------------------------------------------------------------------------------------


HELD = []


def hold(observation):
    HELD[:] = [observation.copy()]
    return HELD[0]


HAND_OUTS = {
    "fresh": (np.copy, True),
    "fresh, transposed": (lambda memory: np.ascontiguousarray(memory.T).T.astype(np.float32), True),
    "the same array": (lambda memory: memory, False),
    "a new view": (lambda memory: memory[:], False),
    "memory that no array owns": (lambda memory: np.frombuffer(memory.data, np.float32).reshape(-1, 1), False),
    "a new array that it keeps": (hold, False),
    "of another dtype": (lambda memory: memory.astype(np.float64), False),
    "read-only": (lambda memory: np.frombuffer(memory.tobytes(), np.float32).reshape(-1, 1), False),
}


def stepped(hand_out):
    """A GymVecEnv after a step, its observation, and whether that is the memory that the environment handed out."""
    addresses = []

    def noted(memory):
        handed = hand_out(memory)
        addresses.append(handed.ctypes.data)
        return handed

    venv = GymVecEnv(Own(hand_out=noted))
    venv.reset()
    observation = venv.step(np.zeros(3, int))[0]
    return venv, observation, observation.ctypes.data == addresses[-1]


@pytest.mark.parametrize(("hand_out", "is_handed_on"), HAND_OUTS.values(), ids=HAND_OUTS)
def test_observations_are_handed_on_where_nobody_else_has_them(hand_out, is_handed_on):
    venv, observation, is_same = stepped(hand_out)
    assert is_same == is_handed_on
    assert (observation.flags.writeable, observation.dtype) == (True, np.float32)
    kept = observation.copy()
    venv.step(np.zeros(3, int))
    np.testing.assert_array_equal(observation, kept)


def test_where_references_are_not_counted_observations_are_copied(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not stepped(np.copy)[2]


def test_infos_tell_of_their_step_however_late_they_are_read():
    venv = GymVecEnv(Own())
    venv.reset()
    first, second, third = (venv.step(np.zeros(3, int))[3] for _ in range(3))
    quiet = {"TimeLimit.truncated": False, "version": "1"}
    assert first == [quiet | {"score": 10.0, "odd": 1}] * 3
    assert second[0].pop("episode").keys() == {"r", "l", "t"}
    assert second[0] == {"TimeLimit.truncated": False, "score": 20.0, "terminal_observation": [2]}
    assert second[1] == quiet | {"score": 20.0}
    assert third[0] == quiet | {"score": 10.0, "odd": 1}
    assert third[1]["terminal_observation"] == [3]
    assert third[1]["episode"]["l"] == 3


def test_infos_of_ends_are_those_of_the_step():
    venv = GymVecEnv(Own())
    venv.reset()
    early, late = (venv.step(np.zeros(3, int))[3] for _ in range(2))
    assert early.at_ends() == []
    (of_end,) = late.at_ends()
    assert of_end["terminal_observation"] == [2]
    assert late[0] is of_end
    late[0] = {}
    assert late.at_ends() == [{}]


# --- Attributes -----------------------------------------------------------------------------------------------------


def test_attributes_of_a_native_source_are_those_of_all_environments():
    venv = GymVecEnv(Own())
    venv.set_attr("gravity", 5.0)
    assert venv.get_attr("gravity", [0, 1]) == [5.0, 5.0]
    assert venv.vector_env.gravity == 5.0
    with pytest.raises(ValueError, match=r"indices must be None, .* has one gravity for all environments, got \[1\]"):
        venv.set_attr("gravity", 3.0, indices=1)
    with pytest.raises(AttributeError, match="gravty"):
        venv.set_attr("gravty", 3.0)
    with pytest.raises(AttributeError, match="no single environments whose reset could be called"):
        venv.env_method("reset")
    assert venv.env_is_wrapped(Monitor) == [True] * 3
