"""SimBa policies: what they compute, that they are compiled, and that they learn what PyTorch learns."""

import copy

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import configure
from torch import nn

import bridge
from bridge.algorithms.specs import SPECS
from bridge.stock.pytorch_simba import ResidualBlock, residual
from tests.bridge.algorithms.cases import Walk, assert_equal, make
from tests.stock import STOCK

# Blocks of the actor and of the critics.
OFF_POLICY, ON_POLICY = {"pi": [4], "qf": [6, 6]}, {"pi": [4], "vf": [6, 6]}
NAMES = [name for name in SPECS if "SimbaPolicy" in SPECS[name].cls.policy_aliases]


def simba(name, package=bridge, **settings):
    arch = OFF_POLICY if SPECS[name].is_off_policy else ON_POLICY
    kwargs = {"net_arch": copy.deepcopy(arch), **settings.pop("policy_kwargs", {})}
    policy = SPECS[name].cls.policy_aliases["SimbaPolicy"]
    return make(name, package=package, policy=policy, policy_kwargs=kwargs, **settings)


def test_a_network_is_the_papers():
    torch.manual_seed(0)
    network, x = residual(3, [4, 4], nn.Linear(4, 2)), torch.randn(5, 3)
    first, block, other, norm, last = network
    assert isinstance(block, ResidualBlock)
    y = first(x)
    for each in (block, other):
        wide, _, narrow = each.layers
        assert (wide.in_features, wide.out_features) == (narrow.out_features, narrow.in_features) == (4, 16)
        normal = (y - y.mean(1, keepdim=True)) / (y.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        y = y + narrow(torch.relu(wide(normal)))
    torch.testing.assert_close(network(x), last(norm(y)))
    with pytest.raises(ValueError, match="must have one or more blocks of one width, got"):
        residual(3, [4, 8])
    with pytest.raises(ValueError, match=r"must have one or more blocks of one width, got \[\]"):
        simba("PPO", policy_kwargs={"net_arch": {"pi": [4]}})


@pytest.mark.thorough(but=["SAC", "PPO"])
@pytest.mark.parametrize("name", NAMES)
def test_all_of_a_training_is_compiled_and_zips_are_sb3s(name, tmp_path):
    model = simba(name, policy_kwargs={"optimizer_class": torch.optim.AdamW})
    assert not model.plan.reasons
    assert model.plan.collects
    blocks = [each for each in model.policy.modules() if isinstance(each, ResidualBlock)]
    assert {each.norm.normalized_shape[0] for each in blocks} == {4, 6}
    model.learn(128)
    assert model._n_updates > 0
    model.save(tmp_path / "model")
    loaded = getattr(STOCK, name).load(tmp_path / "model")
    observation = model.observation_space.sample()
    for each in (model, loaded):
        each.policy.set_training_mode(False)
    np.testing.assert_allclose(
        loaded.predict(observation, deterministic=True)[0],
        model.predict(observation, deterministic=True)[0],
        rtol=1e-5,
        atol=1e-6,
    )


def test_targets_and_optimizers_have_the_blocks():
    policy = simba("TD3").policy
    for network, target in ((policy.actor, policy.actor_target), (policy.critic, policy.critic_target)):
        pairs = zip(network.parameters(), target.parameters(), strict=True)
        assert all(torch.equal(one, other) and one is not other for one, other in pairs)
        trained = {id(each) for group in network.optimizer.param_groups for each in group["params"]}
        assert trained == {*map(id, network.parameters())}


@pytest.mark.parametrize("name", ["TD3", "PPO"])
def test_it_learns_what_pytorch_learns(name):
    """From equal batches: TD3's of one seed, without noise, and PPO's of one rollout in one minibatch."""
    if name == "TD3":
        settings = {"target_policy_noise": 0.0, "action_noise": None, "learning_rate": 1e-3}
        models = []
        for package in (bridge, STOCK):
            env = bridge.make_vec_env(Walk, 1, backend="serial")
            arguments = {"policy_kwargs": {"net_arch": copy.deepcopy(OFF_POLICY)}, **settings}
            model = make("TD3", env, package, SPECS["TD3"].cls.policy_aliases["SimbaPolicy"], **arguments)
            np.random.seed(0)  # noqa: NPY002
            torch.manual_seed(0)
            model.action_space.seed(0)
            models.append(model.learn(40))
        ours, stock = models
        assert ours.plan.updates
    else:
        settings = {"n_steps": 16, "batch_size": 64, "n_epochs": 3, "learning_rate": 1e-2}
        ours, stock = (simba("PPO", package, **settings) for package in (bridge, STOCK))
        _, callback = stock._setup_learn(64)
        stock.collect_rollouts(stock.env, callback, stock.rollout_buffer, 16)
        ours.set_parameters(stock.get_parameters())
        ours.rollout_buffer = copy.deepcopy(stock.rollout_buffer)
        for model in (ours, stock):
            model.set_logger(configure(None, []))
            model.train()
    states = [{name: each.numpy() for name, each in model.policy.state_dict().items()} for model in (ours, stock)]
    assert_equal(*states, rtol=2e-3, atol=3e-4)
    assert ours._n_updates == stock._n_updates > 0
