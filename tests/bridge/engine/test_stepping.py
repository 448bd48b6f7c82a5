"""Acting compiled in environments on the host: what SB3's own loop would have stored, shown and done."""

import os
import signal
import warnings

import gymnasium
import jax
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.bridge.small_models import N_ENVS, ROLLOUT, Recorder, make

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
OBSERVATIONS = {
    "box": VECTOR,
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "discrete": spaces.Discrete(5),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "dict": spaces.Dict({"vector": VECTOR, "image": IMAGE, "number": spaces.Discrete(5)}),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.float64([-1, -0.1]), np.float64([1, 0.1]), dtype=np.float64),
}
FIELDS = ("actions", "rewards", "values", "log_probs", "advantages", "returns", "episode_starts", "observations")


class Sampled(gymnasium.Env):
    """Observations at random; every third step ends an episode, by turns by itself and from outside."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space
        self.steps, self.seen = 0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        self.seen.append(np.array(action))
        assert self.action_space.contains(np.asarray(action, self.action_space.dtype))
        if isinstance(action, np.ndarray):
            action += 0  # environments may write into what is theirs
        return self.observation_space.sample(), 1.0, self.steps % 6 == 3, self.steps % 6 == 0, {}


def sampled(observation="box", action="discrete"):
    return DummyVecEnv([lambda: Sampled(OBSERVATIONS[observation], ACTIONS[action]) for _ in range(N_ENVS)])


def rollout_of(model):
    """The rollout that the first update is to learn from."""
    buffers = []
    model.train = lambda: buffers.append(model.rollout_buffer)
    model.learn(ROLLOUT)
    return buffers[0]


@pytest.mark.thorough(but=["box-multi_discrete"])
@pytest.mark.parametrize(
    ("observation", "action"),
    [*((name, "discrete") for name in OBSERVATIONS), *(("box", name) for name in ACTIONS if name != "discrete")],
)
def test_a_rollout_is_what_sb3_would_have_stored(observation, action, monkeypatch):
    monkeypatch.setattr("bridge.engine.plan.is_slower_compiled", lambda policy: False)  # nor are images
    env, space = sampled(observation, action), ACTIONS[action]
    model = make(env, policy="MultiInputPolicy" if observation == "dict" else "MlpPolicy")
    assert model.plan.actor is not None
    buffer = rollout_of(model)
    assert buffer.full
    seen = jax.tree.map(lambda part: torch.as_tensor(part.reshape(ROLLOUT, *part.shape[2:])), buffer.observations)
    stored = buffer.actions.reshape(ROLLOUT, -1)
    actions = torch.as_tensor(stored[:, 0] if action == "discrete" else stored.astype(np.float32))
    values, log_probs, _ = model.policy.evaluate_actions(seen, actions)
    np.testing.assert_allclose(buffer.values.reshape(-1, 1), values.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(buffer.log_probs.flatten(), log_probs.detach(), rtol=1e-4, atol=1e-5)
    taken = np.stack([environment.seen for environment in env.envs], axis=1).reshape(ROLLOUT, -1)
    np.testing.assert_allclose(taken, np.clip(stored, space.low, space.high) if action == "box" else stored, rtol=1e-6)


def test_a_callback_that_looks_changes_nothing():
    rollouts = []
    for callback in (None, Recorder()):
        model = make(make_vec_env("CartPole-v1", N_ENVS, seed=0))
        model.train = lambda: None
        model.learn(ROLLOUT, callback)
        rollouts.append(model.rollout_buffer)
    for name in FIELDS:
        one, other = (getattr(rollout, name) for rollout in rollouts)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("how", ["in place", "another tensor", "another layer"])
def test_a_policy_that_a_callback_changes_acts_so_from_the_next_step_on(how):
    class Change(BaseCallback):
        def _on_step(self):
            if self.n_calls == 3:
                layer = self.model.policy.value_net
                if how == "in place":
                    layer.bias.data.fill_(7.0)
                elif how == "another tensor":
                    layer.bias.data = torch.full((1,), 7.0)
                else:
                    self.model.policy.value_net = torch.nn.Sequential(layer, Seven())
            return True

    model = make(make_vec_env("CartPole-v1", N_ENVS, seed=0))
    model.policy.value_net.weight.data.zero_()
    model.train = lambda: None
    model.learn(ROLLOUT, Change())
    np.testing.assert_array_equal(model.rollout_buffer.values[:3], 0)
    np.testing.assert_array_equal(model.rollout_buffer.values[3:], 7)


class Seven(torch.nn.Module):
    def forward(self, values):
        return values * 0 + 7


def test_nan_raises_before_it_reaches_an_environment():
    model = make(sampled("box", "box"))
    model.policy.action_net.bias.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN"):
        model.learn(ROLLOUT)
    assert all(not environment.seen for environment in model.env.envs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_after_a_fork_sb3_acts_and_learns_instead_of_waiting_for_ever():
    model = make(make_vec_env("CartPole-v1", N_ENVS, seed=0))
    model.learn(ROLLOUT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of forks
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            model.learn(ROLLOUT)
            os._exit(0 if "forked" in str(model.plan) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.thorough
def test_weights_that_jax_cannot_share_are_copied_and_followed_all_the_same(monkeypatch):
    monkeypatch.setattr("bridge.engine.acting.is_where_jax_computes", lambda tensor: False)  # as on a GPU of PyTorch's
    model = make(make_vec_env("CartPole-v1", N_ENVS, seed=0))
    model.policy.value_net.weight.data.zero_()
    model.train = lambda: model.policy.value_net.bias.data.fill_(7.0)
    model.learn(ROLLOUT)
    np.testing.assert_array_equal(model.rollout_buffer.values, 0)
    model.learn(ROLLOUT)
    np.testing.assert_array_equal(model.rollout_buffer.values, 7)
