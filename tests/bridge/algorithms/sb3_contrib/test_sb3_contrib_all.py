"""Tests of sb3-contrib (2.9.2) for several of its algorithms, on-policy and off-policy, run on bridge's algorithms.

What is one algorithm's alone: test_sb3_contrib_on_policy.py and test_sb3_contrib_off_policy.py.
"""

import numpy as np
import pytest
import torch
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize, VecTransposeImage, is_vecenv_wrapped

import bridge
from bridge.algorithms.specs import SPECS
from tests.bridge.algorithms.sb3_contrib.contrib_models import TwoModes, env_of, make
from tests.stock import STOCK

SEES_PICTURES = ["MaskablePPO", "RecurrentPPO", "MaskableRecurrentPPO", "QRDQN", "TQC"]


def pictures(name, **kwargs):
    env = FakeImageEnv(screen_height=36, screen_width=36, discrete=SPECS[name].actions != "Box", **kwargs)
    return ActionMasker(env, lambda env: np.arange(env.action_space.n) > 0) if name.startswith("Maskable") else env


@pytest.mark.parametrize("name", bridge.CONTRIB)
def test_arguments_come_back_from_a_zip_but_for_those_that_are_left_out(name, tmp_path):
    further = {"target_update_interval": 77} if name == "QRDQN" else {}
    env = DummyVecEnv([lambda: env_of(name)] * 2)
    model = make(name, env, verbose=2, stats_window_size=7, **further)
    model.save(tmp_path / "model", exclude=["verbose"])
    loaded = type(model).load(tmp_path / "model")
    assert loaded.verbose == 0
    loaded.verbose = 2
    loaded.save(tmp_path / "model", exclude=["verbose"], include=["verbose"])
    for package in (bridge, STOCK):
        again = getattr(package, name).load(tmp_path / "model", env=env)
        again._setup_learn(0)
        assert again.verbose == 2
        assert again.ep_info_buffer.maxlen == again.ep_success_buffer.maxlen == 7
        assert all(getattr(again, argument) == value for argument, value in further.items())


# --- Pictures -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough(but=["RecurrentPPO", "TQC"])
@pytest.mark.parametrize("name", SEES_PICTURES)
def test_they_are_trained_on_by_who_says_that_they_are_normalised(name):
    env = VecNormalize(DummyVecEnv([lambda: pictures(name, n_channels=1, channel_first=True)]))
    kwargs = {"normalize_images": False, "features_extractor_kwargs": {"features_dim": 8}}
    assert make(name, env, "Cnn", policy_kwargs=kwargs).learn(32)._n_updates > 0


@pytest.mark.thorough(but=["TQC-False", "TQC-True"])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", ["QRDQN", "TQC"])
def test_networks_of_pictures_their_targets_and_their_files(name, share, tmp_path):
    kwargs = {"features_extractor_kwargs": {"features_dim": 8}}
    if name == "TQC":
        kwargs["share_features_extractor"] = share
    elif share:
        pytest.skip("there is no actor to share with")
    model = make(name, pictures(name, n_channels=1), "Cnn", policy_kwargs=kwargs)
    assert is_vecenv_wrapped(model.get_env(), VecTransposeImage)
    critic, target = ("quantile_net", "quantile_net_target") if name == "QRDQN" else ("critic", "critic_target")
    if name == "TQC":
        assert (model.actor.features_extractor is model.critic.features_extractor) == share

    def equal():
        pairs = zip(getattr(model, critic).parameters(), getattr(model, target).parameters(), strict=True)
        return [torch.equal(one, other) for one, other in pairs]

    assert all(equal())
    assert model.learn(30)._n_updates > 0
    assert not all(equal())
    channels_last = pictures(name, n_channels=1).observation_space.sample()
    model.predict(channels_last)
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    others = (
        type(model).load(tmp_path / "model"),
        getattr(STOCK, name).load(tmp_path / "model"),
        type(model.policy).load(tmp_path / "policy", device="cpu"),
    )
    expected, _ = model.predict(channels_last, deterministic=True)
    for each in others:
        np.testing.assert_allclose(each.predict(channels_last, deterministic=True)[0], expected, rtol=1e-5, atol=1e-6)


# --- Layers of two modes --------------------------------------------------------------------------------------------


def running(model):
    return {name: each.clone() for name, each in model.policy.state_dict().items() if "running_mean" in name}


@pytest.mark.thorough(but=["MaskablePPO", "TQC"])
@pytest.mark.parametrize("name", ["MaskablePPO", "QRDQN", "TQC"])
def test_who_only_acts_neither_drops_out_nor_moves_running_means(name):
    kwargs = {"policy_kwargs": {"features_extractor_class": TwoModes}}
    env = env_of(name)
    model = make(name, env, **kwargs) if name == "MaskablePPO" else make(name, env, gradient_steps=0, **kwargs)
    before = running(model)
    if name == "MaskablePPO":
        _, callback = model._setup_learn(64)
        assert model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    else:
        model.learn(40)
    observation = np.stack([model.observation_space.sample() for _ in range(20)])
    actions = [model.predict(observation, deterministic=True)[0] for _ in range(3)]
    np.testing.assert_array_equal(actions[0], actions[1])
    np.testing.assert_array_equal(actions[0], actions[2])
    assert before
    for of, mean in running(model).items():
        assert torch.equal(mean, before[of]), of
    model.gradient_steps = 1
    model.learn(64)
    for of, mean in running(model).items():
        assert torch.equal(mean, before[of]) == of.startswith("quantile_net_target"), of
