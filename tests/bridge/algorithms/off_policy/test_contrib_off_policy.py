"""Features of bridge.QRDQN, TQC and CrossQ alone: quantiles, running statistics, settings, fallbacks."""

import copy

import numpy as np
import pytest
import torch

import bridge
from jaxenvs import TimeLimit
from tests.bridge.algorithms.cases import KINDS, N_ENVS, make, make_env
from tests.bridge.algorithms.sb3_contrib.contrib_models import TwoModes
from tests.environments import Counter
from tests.stock import STOCK

CASES = {
    "quantiles": ("QRDQN", {"policy_kwargs": {"net_arch": [8], "n_quantiles": 5}}),
    "gradients scaled down": ("QRDQN", {"max_grad_norm": 0.1}),
    "one critic": ("TQC", {"policy_kwargs": {"net_arch": [8], "n_critics": 1, "n_quantiles": 5}}),
    "three critics": ("TQC", {"policy_kwargs": {"net_arch": [8], "n_critics": 3, "n_quantiles": 5}}),
    "fixed entropy": ("TQC", {"ent_coef": 0.01, "top_quantiles_to_drop_per_net": 0}),
    "state-dependent, quantiles": ("TQC", {"use_sde": True}),
    "no warm-up": ("CrossQ", {"policy_kwargs": {"net_arch": [8], "renorm_warmup_steps": 0}}),
    "no renormalisation": ("CrossQ", {"policy_kwargs": {"net_arch": [8], "batch_norm": False}}),
    "state-dependent, renormalised": ("CrossQ", {"use_sde": True}),
    "no delay": ("CrossQ", {"policy_delay": 1, "ent_coef": 0.1}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_settings_of_their_own_train_in_one_program(case):
    name, settings = CASES[case]
    model = make(name, **settings).learn(48)
    assert (model.plan.reasons, model.plan.wrapped_env is None) == ([], False)
    assert model._n_updates >= 10
    assert all(torch.isfinite(parameter).all() for parameter in model.policy.parameters())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["QRDQN", "TQC"])
def test_dict_observations_with_images_train_in_one_program(name):
    env = TimeLimit(Counter(5, "dict", KINDS[name]), 7)
    # By itself it would leave convolutions to PyTorch.
    model = make(name, bridge.JaxVecEnv(env, N_ENVS), policy="MultiInputPolicy", engine="xla", n_steps=1).learn(24)
    assert model.plan.wrapped_env is not None
    assert model._n_updates > 0


def statistics(model):
    return {name: buffer.clone() for name, buffer in model.policy.named_buffers()}


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["one program", "the host"])
def test_running_statistics_of_crossq_are_in_the_policy_in_its_zip_and_in_predict(where, tmp_path):
    env = make_env("CrossQ")
    if where == "the host":
        env = bridge.make_vec_env("Pendulum-v1", 1, seed=0, backend="serial")
    model = make("CrossQ", env)
    before = statistics(model)
    model.learn(60)
    after = statistics(model)
    assert after["critic.qf0.0.steps"] == model._n_updates > 10
    assert after["actor.latent_pi.0.steps"] == model._n_updates // model.policy_delay
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert sorted(moved) == sorted(before)
    model.save(tmp_path / "model")
    stock = STOCK.CrossQ.load(tmp_path / "model")
    for name, theirs in statistics(stock).items():
        torch.testing.assert_close(after[name], theirs, rtol=0, atol=0)
    observation = torch.as_tensor(np.stack([env.observation_space.sample() for _ in range(5)]))
    expected, _ = stock.predict(observation.numpy(), deterministic=True)
    ours, _ = model.predict(observation, deterministic=True)  # of tensors, by a program at once
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        model.actor.latent_pi[0].ra_mean.add_(1.0)
    other, _ = model.predict(observation, deterministic=True)
    assert not np.allclose(other, expected, atol=1e-3)


@pytest.mark.thorough
def test_statistics_that_somebody_sets_are_those_that_train_on():
    model = make("CrossQ")
    model.learn(24)
    given = copy.deepcopy(model.get_parameters())
    given["policy"]["critic.qf0.0.ra_mean"] += 7.0
    given["policy"]["critic.qf0.0.steps"] += 1000
    model.set_parameters(given)
    steps = model._n_updates
    model.learn(12, reset_num_timesteps=False)
    assert model._n_updates > steps
    assert model.critic.qf0[0].steps == 1000 + model._n_updates
    assert (model.critic.qf0[0].ra_mean > 3.0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["QRDQN", "TQC"])
def test_an_extractor_that_normalises_by_batches_is_left_to_sb3(name):
    kwargs = {"net_arch": [8], "features_extractor_class": TwoModes}
    model = make(name, tau=0.0, target_update_interval=1, policy_kwargs=kwargs)
    model.learn(48)
    assert "BatchNorm1d" in str(model.plan)
    networks = (
        (model.quantile_net, model.quantile_net_target) if name == "QRDQN" else (model.critic, model.critic_target)
    )
    model._on_step()  # after which the target of QRDQN follows
    means = [network.features_extractor.layers[1].running_mean for network in networks]
    assert (means[0] != 0).all()
    torch.testing.assert_close(*means)  # which follow even with tau=0
