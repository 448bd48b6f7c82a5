"""bridge.PQN: an update and a schedule as in PyTorch, and its policies."""

import copy

import numpy as np
import pytest
import torch
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

import bridge
from tests.bridge.algorithms.cases import Walk, assert_equal, make, state_of
from tests.stock import STOCK


def weights(model):
    return {name: each.detach().numpy().copy() for name, each in model.policy.state_dict().items()}


@pytest.mark.parametrize("policy", ["MlpPolicy", pytest.param("MultiInputPolicy", marks=pytest.mark.thorough)])
def test_an_update_is_that_of_pytorch(policy, monkeypatch):
    """From the same rollout, and with the same order of minibatches, as there is one."""
    env = DummyVecEnv([lambda: Walk("discrete", "dict" if policy == "MultiInputPolicy" else "vector")] * 4)
    settings = {"n_steps": 16, "batch_size": 64, "n_epochs": 3, "learning_rate": 1e-2, "max_grad_norm": 0.5}
    ours, stock = (make("PQN", env, package, policy, **settings) for package in (bridge, STOCK))
    monkeypatch.setattr(ours, "_own_session", None)
    ours.set_parameters(stock.get_parameters())
    stock.learn(64)  # fills the buffer, and learns
    stock.set_parameters(ours.get_parameters())
    ours.rollout_buffer = copy.deepcopy(stock.rollout_buffer)
    for model in (ours, stock):
        model.set_logger(configure(None, []))
        model.policy.optimizer.state.clear()
        model._current_progress_remaining = 0.5
        model.train()
    assert ours.plan.updates
    assert ours._n_updates == 3
    assert_equal(weights(ours), weights(stock), rtol=1e-4, atol=1e-5)
    for name in ("train/loss", "train/q_values", "train/explained_variance"):
        np.testing.assert_allclose(
            ours.logger.name_to_value[name], stock.logger.name_to_value[name], rtol=1e-4, err_msg=name
        )


def test_the_share_of_random_actions_falls_as_the_schedule_says_where_the_weights_are():
    settings = {"exploration_initial_eps": 0.8, "exploration_final_eps": 0.2, "exploration_fraction": 0.5}
    quiet, looked, stock = make("PQN", **settings), make("PQN", **settings), make("PQN", package=STOCK, **settings)
    seen = []
    quiet.learn(256)
    looked.learn(256, lambda given, _: seen.append(given["self"].policy.exploration_rate.item()) or True)
    stock.learn(256)
    np.testing.assert_allclose(sorted({*seen}, reverse=True), [0.8, 0.5, 0.2], rtol=1e-6)
    assert quiet.exploration_rate == looked.exploration_rate == stock.exploration_rate == 0.2
    assert quiet.policy.exploration_rate.item() == pytest.approx(0.2)
    assert_equal(state_of(quiet), state_of(looked))


def test_without_a_part_in_which_it_falls_the_share_is_the_last():
    for package in (bridge, STOCK):
        model = make("PQN", package=package, exploration_fraction=0.0)
        assert model.exploration_rate == 0.05
        assert model.learn(256).exploration_rate == 0.05
    assert make("DQN", exploration_fraction=0.0).learn(48).exploration_rate == 0.05
    with pytest.raises(ValueError, match="n_steps must be at least 1, got 0"):
        make("PQN", n_steps=0)


@pytest.mark.thorough
def test_pictures_pass_through_layer_norms():
    kwargs = {"features_extractor_kwargs": {"features_dim": 8}}
    model = make(
        "PQN",
        DummyVecEnv([lambda: FakeImageEnv(screen_height=36, screen_width=36, n_channels=3)] * 2),
        policy="CnnPolicy",
        policy_kwargs=kwargs,
        n_steps=8,
    )
    norms = [each for each in model.policy.modules() if isinstance(each, torch.nn.LayerNorm)]
    assert [each.normalized_shape[0] for each in norms] == [32, 64, 64, 8]
    model.learn(32)
    assert model._n_updates > 0
    observation = model.env.observation_space.sample()[None]
    np.testing.assert_array_equal(
        model.predict(observation, deterministic=True)[0], model.policy.predict(observation, deterministic=True)[0]
    )


def test_a_policy_can_be_saved_alone(tmp_path):
    model = make("PQN")
    model.policy.save(tmp_path / "policy")
    loaded = type(model.policy).load(tmp_path / "policy")
    assert_equal({name: each.numpy() for name, each in loaded.state_dict().items()}, weights(model))


class Negated(bridge.PQN.policy_aliases["MlpPolicy"]):
    def q_values(self, obs):
        return -super().q_values(obs)


def test_a_policy_with_values_of_the_users_learns_in_pytorch():
    plan = make("PQN", policy=Negated).plan
    assert not plan.updates
    assert "overrides q_values" in str(plan)


def test_other_actions_than_discrete_are_refused():
    with pytest.raises(AssertionError, match="only supports"):
        bridge.PQN("MlpPolicy", "Pendulum-v1")
