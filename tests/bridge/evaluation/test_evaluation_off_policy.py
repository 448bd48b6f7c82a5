"""evaluate: the numbers of SB3's evaluate_policy, off-policy."""

import itertools

import numpy as np
import pytest
import torch
from stable_baselines3.common.evaluation import evaluate_policy

import bridge
from bridge import JaxVecEnv, make_vec_env
from bridge.algorithms.specs import SPECS
from bridge.evaluation import evaluate
from jaxenvs import TimeLimit
from tests.environments import Counter
from tests.stock import STOCK

SETTINGS = {"buffer_size": 100, "learning_starts": 0, "policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
NAMES = [name for name, spec in SPECS.items() if spec.is_off_policy]
PACKAGES = {"bridge": bridge, "sb3": STOCK}
IDS = {"Discrete": "CartPole-v1", "Box": "Pendulum-v1"}


# A policy of SB3's is evaluated as one of bridge's: the default run shows it for one of each kind of actions.
@pytest.mark.thorough(but=["QRDQN-bridge"])
@pytest.mark.parametrize(
    ("name", "package"),
    itertools.product(NAMES, PACKAGES),
)
def test_episodes_are_those_of_evaluate_policy(name, package):
    settings = {**SETTINGS, "policy_kwargs": {"net_arch": [8]}}
    env_id = IDS[SPECS[name].actions]
    model = getattr(PACKAGES[package], name)("MlpPolicy", make_vec_env(env_id, 1, seed=0), **settings)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
        for buffer in model.policy.buffers():  # what CrossQ's networks have seen
            if buffer.is_floating_point():
                buffer.add_(0.3 * torch.rand(buffer.shape))
    result = evaluate(model, env_id, 4, seed=3)
    returns, lengths = evaluate_policy(
        model, make_vec_env(env_id, 4, seed=3), 4, return_episode_rewards=True, warn=False
    )
    np.testing.assert_allclose(sorted(result.returns), sorted(returns), rtol=1e-3)
    assert sorted(result.lengths) == sorted(lengths)
    assert evaluate(model.policy, env_id, 4, seed=3).mean == result.mean


@pytest.mark.thorough
def test_episodes_that_are_not_deterministic_explore_as_often_as_the_model():
    env = TimeLimit(Counter(length=1000, action_kind="discrete"), 200)
    model = bridge.DQN("MlpPolicy", JaxVecEnv(env, 1, 0), **{**SETTINGS, "policy_kwargs": {"net_arch": [8]}})
    with torch.no_grad():
        model.q_net.q_net[-1].weight.zero_()
        model.q_net.q_net[-1].bias.copy_(torch.tensor([1.0, 0.0, 0.0]))  # whose reward is 0
    for rate in (0.0, 0.6, 1.0):
        model.exploration_rate = rate
        result = evaluate(model, env, 8, deterministic=False)
        np.testing.assert_allclose(result.mean, 200 * rate, atol=15)  # the mean of 0, 1 and 2 is 1
        assert evaluate(model, env, 8).mean == 0
    assert evaluate(model.policy, env, 8, deterministic=False).mean == 0


@pytest.mark.thorough
def test_samples_of_sac_differ_and_actions_of_td3_do_not():
    for name, differ in (("SAC", True), ("TD3", False)):
        model = getattr(bridge, name)("MlpPolicy", "Pendulum-v1", **{**SETTINGS, "policy_kwargs": {"net_arch": [8]}})
        drawn, greedy = (evaluate(model, "Pendulum-v1", 4, deterministic=each) for each in (False, True))
        assert (not np.allclose(drawn.returns, greedy.returns)) == differ
