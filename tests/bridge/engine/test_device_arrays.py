"""Rollouts that stay on the device of an environment's tensors, which here is the CPU: equal to those through NumPy."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import bridge
from benchmarks.peers.torch_cartpole import TorchCartPole
from bridge import GymVecEnv
from bridge.engine.on_policy import device_arrays
from bridge.engine.on_policy.device_arrays import DeviceArrays
from bridge.host_env import gym_vec_env
from bridge.host_env.batches import as_array
from tests.bridge.algorithms.cases import assert_equal, state_of_rollouts
from tests.bridge.small_models import N_ENVS, N_STEPS, ROLLOUT, OnRolloutEnd, Recorder, make

WRITE_BACK = DeviceArrays.write_back


class Pushed(gymnasium.vector.VectorEnv):
    """A point that actions push, observed as doubles and as bytes. Its episodes end by turns."""

    def __init__(self):
        self.num_envs, self.metadata = N_ENVS, {"autoreset_mode": AutoresetMode.SAME_STEP}
        place, distance = spaces.Box(-9, 9, (2,), np.float64), spaces.Box(0, 255, (1,), np.uint8)
        self.single_observation_space = spaces.Dict({"place": place, "distance": distance})
        self.single_action_space = spaces.Box(np.float32([-0.5, -1]), np.float32([0.5, 1]))

    def reset(self, *, seed=None, options=None):
        self.place, self.count = torch.zeros(N_ENVS, 2), 0
        return self._observe(), {}

    def step(self, actions):
        self.count += 1
        assert actions.abs().max() <= 1
        self.place += actions
        ended = torch.arange(N_ENVS) == self.count % 7
        info, rewards = {"final_obs": self._observe()}, -self.place.abs().sum(1)
        self.place[ended] = 0
        return self._observe(), rewards, ended & (self.count % 2 == 0), ended & (self.count % 3 > 0), info

    def _observe(self):
        return {"place": self.place, "distance": (self.place[:, :1].abs() * 50).to(torch.uint8)}


class Meddling(TorchCartPole):
    """Changes the model's weights in a step."""

    model = None

    def step(self, actions):
        if self.model is not None and self.model.num_timesteps == ROLLOUT + 5 * N_ENVS:
            with torch.no_grad():
                self.model.policy.action_net.weight.mul_(-2)
        return super().step(actions)


@pytest.fixture
def stay(monkeypatch):
    """A function that lets CPU tensors count as tensors of another device, and returns what is written back."""

    def stay():
        written = []
        monkeypatch.setattr(device_arrays, "HOST", None)
        monkeypatch.setattr(DeviceArrays, "write_back", lambda self: written.append(self) or WRITE_BACK(self))
        return written

    return stay


def cartpole(**settings):
    return make(GymVecEnv(TorchCartPole(N_ENVS, max_episode_steps=9)), **settings)


def assert_same(ours, theirs):
    assert_equal(state_of_rollouts(ours), state_of_rollouts(theirs))
    assert isinstance(ours.rollout_buffer.actions, np.ndarray)
    assert isinstance(ours._last_obs, type(theirs._last_obs))


CASES = {
    "cartpole": cartpole,
    "a2c": lambda: bridge.A2C("MlpPolicy", cartpole().env, n_steps=N_STEPS, seed=0, policy_kwargs={"net_arch": [8]}),
    "dict": lambda: make(GymVecEnv(Pushed()), policy="MultiInputPolicy", use_sde=True),
}


@pytest.mark.thorough(but=["cartpole"])
@pytest.mark.parametrize("name", CASES)
def test_training_is_bitwise_that_through_numpy(name, stay):
    theirs = CASES[name]().learn(3 * ROLLOUT)
    written = stay()
    ours = CASES[name]().learn(3 * ROLLOUT)
    assert len(written) == 1  # at the end of `learn`: updates have read the rollouts on the device
    assert_same(ours, theirs)
    for model in (ours, theirs):
        model.set_random_seed(1)
        model.learn(ROLLOUT, reset_num_timesteps=False)
    assert_same(ours, theirs)


def test_steps_make_no_arrays_of_observations(stay, monkeypatch):
    def count():
        shapes = []
        monkeypatch.setattr(
            gym_vec_env, "as_array", lambda tensor: shapes.append(tuple(tensor.shape)) or as_array(tensor)
        )
        make(GymVecEnv(TorchCartPole(N_ENVS))).learn(ROLLOUT)
        return shapes.count((N_ENVS, 4))

    assert count() == 1 + N_STEPS
    stay()
    assert count() == 2  # the first, and the last, which the model keeps


def test_what_looks_sees_arrays(stay):
    """SB3's loop, and a callback at the end of a rollout."""
    recorder = Recorder()
    seen = []
    callbacks = [recorder], [OnRolloutEnd(lambda model: seen.append(model.rollout_buffer.observations.copy()))]
    theirs = [cartpole().learn(2 * ROLLOUT, callback) for callback in callbacks]
    expected = seen.copy()
    recorder.__init__(), seen.clear(), stay()
    ours = [cartpole().learn(2 * ROLLOUT, callback) for callback in callbacks]
    np.testing.assert_array_equal(seen, expected)
    assert {type(step[name]) for step in recorder.steps for name in ("new_obs", "rewards", "dones")} == {np.ndarray}
    for mine, reference in zip(ours, theirs):
        assert_same(mine, reference)


def test_where_an_environment_changes_the_policy_pytorch_acts(stay):
    def trained():
        env = Meddling(N_ENVS, max_episode_steps=9)
        env.model = make(GymVecEnv(env))
        return env.model.learn(3 * ROLLOUT)

    theirs = trained()
    written = stay()
    ours = trained()
    assert len(written) == 2
    assert_same(ours, theirs)


def test_after_an_error_everything_is_where_sb3_has_it(stay):
    class Failing(TorchCartPole):
        steps = 0

        def step(self, actions):
            self.steps += 1
            if self.steps == 5:
                raise ArithmeticError("the pole broke")
            return super().step(actions)

    stay()
    model = make(GymVecEnv(Failing(N_ENVS)))
    with pytest.raises(ArithmeticError, match="the pole broke"):
        model.learn(ROLLOUT)
    buffer = model.rollout_buffer
    assert (buffer.pos, model.num_timesteps) == (4, 4 * N_ENVS)
    assert buffer.observations[:4].any(axis=(1, 2)).all()
    assert not buffer.observations[4:].any()
    assert isinstance(model._last_obs, np.ndarray)
    with pytest.raises(RuntimeError, match=r"Call reset\(\) first"):
        model.learn(ROLLOUT, reset_num_timesteps=False)


def test_classes_are_checked_on_the_host(stay):
    """A class out of range is SB3's error, which compiled functions cannot raise."""

    class Counted(TorchCartPole):
        def __init__(self):
            super().__init__(N_ENVS)
            self.single_observation_space = spaces.Discrete(9)

        def _observe(self):
            return self.count.clone()

    written = stay()
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        make(GymVecEnv(Counted())).learn(ROLLOUT)
    assert not written
