"""Where a VecEnv of the host has to do what SB3's does, with the same environments: made by each `make_vec_env`."""

import functools

import gymnasium
import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

import bridge
from tests.bridge.host_env.host_environments import Counting

MAKERS = {"stock": make_vec_env, "serial": bridge.make_vec_env}
BACKENDS = {**MAKERS, "process": functools.partial(bridge.make_vec_env, backend="process")}


ACTIONS = {
    "int64": (spaces.Box(0, 2**40, (1,), np.int64), np.array([[2**24 + 1]])),
    "float16": (spaces.Box(-1, 1, (2,), np.float16), np.array([[0.1, 0.2]], np.float32)),
    "binary": (spaces.MultiBinary(2), np.array([[1, 0]], np.float32)),
    "discrete": (spaces.Discrete(5), np.array([3], np.uint8)),
}


class Odd(gymnasium.Env):
    """Returns what it is told to, and ends after three steps."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)

    def __init__(self, reward=0.1, info=None, action_space=None):
        self.reward, self.info = reward, {} if info is None else info
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.seen = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.seen.append(action)
        self.count += 1
        return np.full(1, self.count, np.float32), self.reward, self.count == 3, False, self.info


class Endless(Odd):
    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, False, truncated, info


@pytest.fixture
def make():
    made = []

    def make(name, *args, **kwargs):
        made.append(BACKENDS[name](*args, **kwargs))
        return made[-1]

    yield make
    for venv in made:
        venv.close()


@pytest.mark.parametrize("name", BACKENDS)
def test_options_for_too_few_environments_are_an_error_and_reset_none(make, name):
    venv = make(name, Counting, 3)
    venv.reset()
    venv.set_options([{"low": 1}])
    with pytest.raises(IndexError):
        venv.reset()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("odd", [{"reward": None}, {"info": []}])
def test_a_step_without_a_reward_or_an_info_raises(make, name, odd):
    venv = make(name, lambda: Odd(**odd), 1)
    venv.reset()
    with pytest.raises((TypeError, AttributeError)):
        venv.step([0])


@pytest.mark.parametrize("name", MAKERS)
def test_a_step_before_the_first_reset_raises(make, name):
    with pytest.raises(RuntimeError, match="reset"):
        make(name, lambda: Odd(), 1).step([0])


@pytest.mark.thorough(but=MAKERS)
@pytest.mark.parametrize("name", BACKENDS)
def test_the_return_of_an_episode_is_rounded_to_six_places(make, name):
    venv = make(name, functools.partial(Odd, 1 / 3e5), 1)
    venv.reset()
    infos = [venv.step([0])[3][0] for _ in range(3)]
    assert infos[-1]["episode"]["r"] == 1e-5


def unsigned():
    space = spaces.Discrete(3)
    space.dtype = np.dtype(np.uint8)  # which its constructor takes in later versions of Gymnasium only
    return space


@pytest.mark.thorough(but=["space1-process", *(f"{space}-{name}" for space in ("space0", "space1") for name in MAKERS)])
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("space", [unsigned(), spaces.MultiDiscrete([3, 4], dtype=np.uint8)])
def test_actions_of_unsigned_spaces_are_those_of_sb3(make, name, space):
    venv = make(name, functools.partial(Odd, action_space=space), 1)
    stable_baselines3.A2C("MlpPolicy", venv, n_steps=3, device="cpu").learn(3)
    assert {each.dtype for each in venv.get_attr("seen")[0]} == {np.dtype(np.int64)}


def test_actions_of_unsigned_spaces_reach_a_vector_environment_in_range():
    space = spaces.MultiDiscrete([3, 4], dtype=np.uint8)
    venv = bridge.GymVecEnv(SyncVectorEnv([functools.partial(Odd, action_space=space)]))
    venv.reset()
    venv.step(np.array([[2, 3]]))
    with pytest.raises(ValueError, match="must lie in"):
        venv.step(np.array([[2, 256]]))


@pytest.mark.parametrize("name", BACKENDS)
def test_indices_may_be_any_iterable(make, name):
    venv = make(name, Odd, 3)
    of_two = {0: None, 2: None}.keys()
    assert venv.env_is_wrapped(Monitor, of_two) == [True, True] or name == "process"
    assert venv.get_attr("reward", (each for each in of_two)) == [0.1, 0.1]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
def test_dones_of_a_vector_environment_are_bools(dtype):
    class Flags(SyncVectorEnv):
        def step(self, actions):
            observation, reward, *flags, info = super().step(actions)
            return observation, reward, *(flag.astype(dtype) for flag in flags), info

    venv = bridge.GymVecEnv(Flags([Odd, Odd]))
    venv.reset()
    dones = [venv.step(np.zeros(2, np.int64))[2] for _ in range(3)]
    assert [each.dtype for each in dones] == [np.dtype(bool)] * 3
    assert [each.tolist() for each in dones] == [[False] * 2] * 2 + [[True] * 2]


class Lives(gymnasium.Wrapper):
    """Ends an episode at every step, where the Monitor's goes on."""

    def reset(self, **kwargs):
        return (np.zeros(1, np.float32), {}) if 0 < self.unwrapped.count < 3 else self.env.reset(**kwargs)

    def step(self, action):
        observation, reward, _, truncated, info = self.env.step(action)
        return observation, reward, True, truncated, info


def test_an_evaluation_counts_the_episodes_of_the_monitor_that_is_there():
    env = Odd(reward=1.0)
    env.count = 0
    lives = Lives(Monitor(env))
    model = bridge.PPO("MlpPolicy", lives, n_steps=8, batch_size=8, device="cpu")
    returns, lengths = evaluate_policy(model, lives, 2, return_episode_rewards=True)
    ours = bridge.evaluate(model, lives, 2)
    assert (ours.returns.tolist(), ours.lengths.tolist()) == (returns, lengths) == ([3.0, 3.0], [3, 3])
    assert ours.terminated.tolist() == [True, True]


def test_a_monitor_that_never_sees_an_episode_end_is_an_error():
    env = TimeLimit(Monitor(Endless()), 5)
    model = bridge.PPO("MlpPolicy", Odd(), n_steps=8, batch_size=8, device="cpu")
    with pytest.raises(ValueError, match=r"env must have its Monitor outside"):
        bridge.evaluate(model, env, 2)


def test_an_evaluation_counts_the_episodes_that_the_monitor_sees():
    class Alternating(Odd):
        num = 0

        def reset(self, *, seed=None, options=None):
            self.num += 1
            return super().reset(seed=seed, options=options)

        def step(self, action):
            observation, reward, is_over, truncated, info = super().step(action)
            return observation, reward, is_over and self.num % 2 == 0, truncated, info

    env = TimeLimit(Monitor(Alternating(1.0)), 5)
    model = bridge.PPO("MlpPolicy", Odd(), n_steps=8, batch_size=8, device="cpu")
    assert bridge.evaluate(model, env, 2).lengths.tolist() == [3, 3]


@pytest.mark.thorough(but=["float16-process", *(f"{kind}-{name}" for kind in ACTIONS for name in MAKERS)])
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("space", "actions"), ACTIONS.values(), ids=ACTIONS)
def test_environments_get_actions_as_they_were_passed(make, name, space, actions):
    venv = make(name, functools.partial(Odd, action_space=space), 1)
    venv.reset()
    for _ in range(2):
        venv.step(actions)
    for seen in venv.get_attr("seen")[0]:
        assert (seen.dtype, seen.tolist()) == (actions.dtype, actions[0].tolist())


@pytest.mark.parametrize("name", BACKENDS)
def test_episodes_may_be_begun_by_hand(make, name):
    venv = make(name, functools.partial(Odd, 1.0), 2)
    venv.env_method("reset", seed=3)
    assert venv.step(np.zeros(2, int))[0][0] == 1
    venv.env_method("reset", indices=[1])
    *_, infos = [venv.step(np.zeros(2, int))[3] for _ in range(3)]
    assert infos[1]["episode"]["l"] == infos[1]["episode"]["r"] == 3


class Looks(BaseCallback):
    def _on_step(self):
        return True


@pytest.mark.parametrize("callback", [None, Looks()])
def test_binary_actions_are_floats_as_from_sb3(make, callback):
    venv = make("serial", functools.partial(Odd, action_space=spaces.MultiBinary(2)), 1)
    bridge.A2C("MlpPolicy", venv, n_steps=3, device="cpu").learn(3, callback)
    assert {each.dtype for each in venv.get_attr("seen")[0]} == {np.dtype(np.float32)}
