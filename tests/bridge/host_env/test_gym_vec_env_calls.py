"""Calls of a GymVecEnv: episodes, invalid actions, calls out of order, incomplete vector environments."""

import chex
import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformReward
from stable_baselines3.common.monitor import Monitor

from bridge import GymVecEnv
from tests.bridge.host_env.host_environments import Counting
from tests.bridge.host_env.test_gym_vec_env import Own
from tests.bridge.vec_env.test_jax_vec_env import sample_actions


def test_episodes_of_monitored_environments_are_their_monitors():
    def env():
        return gymnasium.wrappers.TransformReward(Monitor(Counting()), lambda reward: 100.0)

    venv = GymVecEnv(SyncVectorEnv([env] * 2))
    venv.reset()
    steps = [venv.step(np.ones(2, int)) for _ in range(5)]
    assert steps[-1][1].tolist() == [100, 100]
    assert [info["episode"]["r"] for info in steps[-1][3]] == [0.5, 0.5]
    assert not any("episode" in info for info in steps[0][3])
    assert venv.env_is_wrapped(Monitor) == [True, True]
    assert venv.env_is_wrapped(gymnasium.wrappers.TransformReward, 0) == [True]


def test_a_wrapper_around_the_whole_counts():
    venv = GymVecEnv(TransformReward(SyncVectorEnv([Counting] * 2), lambda reward: reward + 1))
    venv.reset()
    assert venv.step(np.zeros(2, int))[1].tolist() == [1, 1]
    assert venv.get_attr("length") == [5, 5]


def test_actions_reach_the_source_in_the_dtype_of_its_space():
    venv = GymVecEnv(Own())
    venv.reset()
    for actions in ([0, 1, 2], np.array([0, 1, 2], np.int32)):
        venv.step(actions)
        assert venv.vector_env.received.dtype == np.int64
        assert venv.vector_env.received.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        ([0, 1], ValueError, r"actions must have shape \(3,\), got \(2,\)"),
        ([0, -1, 0], ValueError, r"actions\[1\] must lie in Discrete\(3\), got -1"),
        (np.array([0, 0, 3], np.int32), ValueError, r"actions\[2\] must lie in Discrete\(3\), got 3"),
        ([0.0, 1.0, 2.0], TypeError, "int64 or cast safely to it, got float64"),
    ],
)
def test_a_bad_action_is_named_and_nothing_is_stepped(actions, error, message):
    venv = GymVecEnv(Own())
    venv.reset()
    with pytest.raises(error, match=message):
        venv.step(actions)
    assert venv.vector_env.received is None
    venv.step([0, 1, 2])


def test_calls_out_of_order_are_named():
    venv = GymVecEnv(Own())
    with pytest.raises(RuntimeError, match=r"Call reset\(\) first"):
        venv.step(np.zeros(3, int))
    venv.reset()
    with pytest.raises(RuntimeError, match="step_wait was called without step_async"):
        venv.step_wait()
    venv.step_async(np.zeros(3, int))
    with pytest.raises(RuntimeError, match="step_async was called again before step_wait"):
        venv.step_async(np.zeros(3, int))
    assert venv.reset().tolist() == [[0], [0], [0]]  # the step is forgotten
    with pytest.raises(TypeError, match="reset takes no arguments"):
        venv.reset(seed=3)
    with pytest.raises(ValueError, match="options must be the same for all environments"):
        venv.set_options([{"low": 0}, {}, {}])


def test_a_source_may_give_arrays_of_jax():
    class OfJax(Own):
        def step(self, actions):
            observation, rewards, terminated, truncated, info = super().step(actions)
            return *map(jnp.asarray, (observation, rewards, terminated, truncated)), info

    venv, reference = GymVecEnv(OfJax()), GymVecEnv(Own())
    venv.reset(), reference.reset()
    for actions in sample_actions(venv, 5):
        ours, theirs = venv.step(actions), reference.step(actions)
        chex.assert_trees_all_equal(ours[:3], theirs[:3])
        assert [info.get("terminal_observation") for info in ours[3]] == [
            info.get("terminal_observation") for info in theirs[3]
        ]


def test_after_a_step_that_failed_there_must_be_a_reset():
    venv = GymVecEnv(SyncVectorEnv([Counting] * 3))
    venv.reset()
    with pytest.raises(ArithmeticError, match="the pole broke"):
        venv.step(np.array([0, 4, 0]))
    with pytest.raises(RuntimeError, match=r"Call reset\(\) first"):
        venv.step(np.zeros(3, int))
    venv.reset()
    venv.step(np.zeros(3, int))


class Undeclared(Own):
    def __init__(self):
        super().__init__()
        self.metadata = {}


def no_mask(mode):
    return Own(mode=mode, reads_mask=False)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: gymnasium.make("CartPole-v1"), TypeError, "vector_env must be a gymnasium.vector.VectorEnv, got Time"),
        (Undeclared, ValueError, r"metadata\['autoreset_mode'\] must be a gymnasium.vector.AutoresetMode, .* got None"),
        (
            lambda: no_mask(AutoresetMode.NEXT_STEP),
            ValueError,
            "auto-reset NEXT_STEP, so it must be able to reset single env",
        ),
        (lambda: no_mask(AutoresetMode.DISABLED), ValueError, "DISABLED, .* its reset does not read this option"),
        # The wrapper reads the mask, and what it wraps does not.
        (lambda: RecordEpisodeStatistics(no_mask(AutoresetMode.NEXT_STEP)), ValueError, "does not read this option"),
        (
            lambda: RecordEpisodeStatistics(gymnasium.make_vec("CartPole-v1", 2, "vector_entry_point")),
            ValueError,
            "does not read this option",
        ),
    ],
)
def test_a_source_that_cannot_be_presented_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        GymVecEnv(make())


def test_a_source_that_tells_no_final_observation_is_named():
    class Silent(Own):
        def step(self, actions):
            *step, info = super().step(actions)
            return *step, {"score": info["score"]}

    venv = GymVecEnv(Silent())
    venv.reset()
    venv.step(np.zeros(3, int))
    with pytest.raises(ValueError, match=r"must hold final_obs, .* The infos of environments \[0\] hold \['sc"):
        venv.step(np.zeros(3, int))
