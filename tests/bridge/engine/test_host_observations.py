"""Observations that a compiled function cannot take as they are: 64-bit integers, and classes out of range."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

import bridge
from bridge.observations import map_parts

LARGE = 2**33 + 5  # 5 in 32 bits
DTYPES = [np.int64, np.uint64, np.uint32, np.float64]


def large(dtype):
    return np.array([2**31 + 5 if dtype is np.uint32 else LARGE, 7], dtype)


class Constant(gymnasium.Env):
    """Gives one observation, until another one at a step."""

    def __init__(self, space, observation, later=None, at=-1, action_space=None):
        self.observation_space, self.action_space = space, action_space or spaces.Discrete(2)
        self.observation, self.later, self.at = observation, later, at

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observation, {}

    def step(self, action):
        self.steps += 1
        return (self.later if self.steps == self.at else self.observation), 1.0, self.steps >= 32, False, {}


class Scaled(BaseFeaturesExtractor):
    """Brings large numbers near 1, so that the values depend on them."""

    def __init__(self, space):
        super().__init__(space, 2)
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, observation):
        observation = observation["clock"] if isinstance(observation, dict) else observation
        return torch.tanh(self.layer(observation * 1e-10))


SCALED = {"features_extractor_class": Scaled, "net_arch": [4]}


def box(dtype):
    return Constant(spaces.Box(0, large(dtype)[0], (2,), dtype), large(dtype))


def make(name, env, library=bridge, **settings):
    given = {"n_steps": 16, "batch_size": 16, "n_epochs": 1} if name == "PPO" else {"n_steps": 16}
    if name in ("DQN", "SAC", "DDPG"):
        given = {"batch_size": 4, "buffer_size": 50, "learning_starts": 4}
    policy = "MultiInputPolicy" if isinstance(env.observation_space, spaces.Dict) else "MlpPolicy"
    settings = {"policy_kwargs": {"net_arch": [4]}, "seed": 0, "device": "cpu", **given, **settings}
    # SB3 writes into policy_kwargs.
    return getattr(library, name)(policy, env, **settings | {"policy_kwargs": dict(settings["policy_kwargs"])})


@pytest.mark.thorough(but=["float64", "dict"])
@pytest.mark.parametrize("dtype", [*DTYPES, "dict"])
def test_a_rollout_of_large_numbers_is_valued_as_by_sb3(dtype):
    if dtype == "dict":
        observation = {"clock": large(np.int64)}
        env = Constant(spaces.Dict({"clock": box(np.int64).observation_space}), observation)
    else:
        env, observation = box(dtype), large(dtype)
    model = make("PPO", env, learning_rate=0.0, policy_kwargs=SCALED)
    assert model.plan.actor is not None
    model.learn(16)
    batch = map_parts(lambda part: torch.as_tensor(part[None]), observation)
    expected = model.policy.predict_values(batch)
    np.testing.assert_allclose(model.rollout_buffer.values, expected.item(), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["PPO", "DQN", "DDPG"])
def test_an_update_from_large_numbers_is_sb3s(name):
    def trained(library):
        env = box(np.int64)
        if name == "DDPG":
            env.action_space = spaces.Box(-1, 1, (1,))
        model = make(name, env, library, policy_kwargs=SCALED)
        if name == "PPO":
            buffer = model.rollout_buffer
            buffer.observations[:] = large(np.int64)
            buffer.log_probs[:], buffer.returns[:], buffer.advantages[:, 0] = -0.7, 2.0, np.arange(16)
            buffer.pos, buffer.full = 16, True
            model._setup_learn(16)
            model.train()
        else:
            observation, action = large(np.int64)[None], np.zeros((1, 1), np.float32)
            model.replay_buffer.add(observation, observation, action, np.ones(1), np.zeros(1, bool), [{}])
            model._setup_learn(16)
            model.train(1, 4)
        return model.policy

    ours, theirs = trained(bridge).state_dict(), trained(stable_baselines3).state_dict()
    for part in ours:
        np.testing.assert_allclose(ours[part], theirs[part], atol=1e-6, err_msg=part)


@pytest.mark.parametrize("of", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_predict_takes_large_numbers_as_sb3(name, of, compiled_predict):
    env = box(np.int64)
    env.action_space = spaces.Box(-1, 1, (1,))
    model = make(name, env, policy_kwargs=SCALED)
    expected, _ = model.policy.predict(large(np.int64), deterministic=True)
    action, _ = model.predict(of(large(np.int64)), deterministic=True)
    np.testing.assert_allclose(action, expected, atol=1e-6)


def test_predict_takes_integers_for_a_box_of_floats_as_sb3(compiled_predict):
    env = Constant(spaces.Box(0, 2.0**40, (2,)), np.zeros(2, np.float32), action_space=spaces.Box(-1, 1, (1,)))
    model = make("PPO", env, policy_kwargs=SCALED)
    expected, _ = model.policy.predict(large(np.int64), deterministic=True)
    np.testing.assert_allclose(model.predict(large(np.int64), deterministic=True)[0], expected, atol=1e-6)


CLASSES = {
    "discrete": (spaces.Discrete(4), 0, 4),
    "negative": (spaces.Discrete(4), 0, -1),
    "multi_discrete": (spaces.MultiDiscrete([3, 5]), np.array([2, 4]), np.array([3, 0])),
    "dict": (spaces.Dict({"room": spaces.Discrete(4)}), {"room": 0}, {"room": 4}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_out_of_range_is_sb3s_error(kind):
    space, inside, outside = CLASSES[kind]
    messages = []
    for library in (stable_baselines3, bridge):
        with pytest.raises(RuntimeError, match="Class values must be") as error:
            make("PPO", Constant(space, inside, outside, at=5), library).learn(32)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN"])
def test_a_class_out_of_range_that_only_ends_a_rollout_is_sb3s_error(name):
    # PPO and A2C only value it, DQN only learns from it: its actions are random until then.
    settings = {"learning_starts": 16, "train_freq": 20, "exploration_fraction": 1.0} if name == "DQN" else {}
    for library in (stable_baselines3, bridge):
        model = make(name, Constant(spaces.Discrete(4), 0, 4, at=16), library, **settings)
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            model.learn(16 if name != "DQN" else 20)


@pytest.mark.thorough
@pytest.mark.parametrize("of", [np.asarray, torch.as_tensor, jnp.asarray])
def test_predict_refuses_a_class_out_of_range(of, compiled_predict):
    model = make("PPO", Constant(spaces.Discrete(4), 0))
    assert model.predict(of(3))[0] in (0, 1)
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        model.predict(of(7))
