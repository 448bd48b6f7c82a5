"""References for host environments: SB3's DummyVecEnv and Gymnasium's CartPole; and modules of examples."""

import importlib.util
from pathlib import Path

import chex
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.bridge.host_env.host_environments import Counting
from tests.bridge.vec_env.test_jax_vec_env import assert_same_step, plain, sample_actions

EXAMPLES = Path(__file__).parents[3] / "examples"


def example_at(path):
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), EXAMPLES / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def began(venv):
    """The reset_infos. Where single environments are reset, Gymnasium says {} for no options."""
    return [info | {"options": info["options"] or None} if info else info for info in venv.reset_infos]


def buffers(venv):
    """What a DummyVecEnv keeps of its last step."""
    return venv._obs_from_buf(), venv.buf_rews, venv.buf_dones, venv.buf_infos


def assert_same_as_dummy_vec_env(ours, parameters, options=({"low": 0}, {}, {"low": 2})):
    """Step three environments of these parameters through resets and ends of episodes, and SB3's beside them.

    Args:
      options: of the first reset; None for none.
    """
    reference = DummyVecEnv([lambda: Monitor(Counting(**parameters))] * 3)
    for venv in (ours, reference):
        venv.seed(5)
        if options is not None:
            venv.set_options(list(options))
    chex.assert_trees_all_equal(ours.reset(), plain(reference.reset()))
    assert began(ours) == began(reference)
    for actions in sample_actions(ours, 12):
        actions = actions % 4 if isinstance(ours.action_space, spaces.Discrete) else actions  # the others are faults
        assert_same_step(ours.step(actions), reference.step(actions))
        if isinstance(ours, DummyVecEnv):  # whose buffers callbacks read
            assert_same_step(buffers(ours), buffers(reference))
        assert began(ours) == began(reference)
    chex.assert_trees_all_equal(ours.reset(), plain(reference.reset()))  # unseeded and without options
    assert began(ours) == began(reference)


def assert_steps_are_of_cartpole(venv, num_steps, limit):
    """Replay every transition in Gymnasium's CartPole; return how many episodes it and the limit ended."""
    one, ends, length = CartPoleEnv(), {True: 0, False: 0}, np.zeros(venv.num_envs, int)
    venv.seed(0)
    before = venv.reset()
    one.reset()
    for actions in sample_actions(venv, num_steps):
        observation, rewards, dones, infos = venv.step(actions)
        length += 1
        for index in range(venv.num_envs):
            one.state, one.steps_beyond_terminated = before[index].astype(float), None
            expected, reward, terminated, _, _ = one.step(actions[index])
            after = infos[index]["terminal_observation"] if dones[index] else observation[index]
            np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-5)
            assert (rewards[index], dones[index]) == (reward, terminated or length[index] == limit)
            if dones[index]:
                ends[terminated] += 1
                assert np.abs(observation[index]).max() <= 0.05
                assert infos[index]["TimeLimit.truncated"] == (not terminated)
                assert (infos[index]["episode"]["l"], infos[index]["episode"]["r"]) == (length[index], length[index])
                length[index] = 0
        before = observation.copy()
    return ends[True], ends[False]
