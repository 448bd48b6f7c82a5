"""Snapshots notice what makes a translation out of date, and nothing else."""

import dataclasses
import threading
import types

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

import bridge
from bridge.errors import NotCompilable
from bridge.translate.policies import exported_network
from bridge.translate.policies.exported_network import MOST_COMPUTATIONS, keeps_changing
from bridge.translate.policies.on_policy import export_policy
from bridge.translate.user_modules.snapshot import Snapshot
from tests.bridge.translate.policies.networks import Extractor, batch, extractor


@dataclasses.dataclass(slots=True)
class Slotted:
    scale: float = 1.0


class AlwaysEqual:
    def __eq__(self, other):
        return True

    __hash__ = None


GAIN, GAINS = 1.0, types.SimpleNamespace(hidden=1.0)


def gain():
    return GAIN + GAINS.hidden


class Configured(Extractor):
    """Has attributes of many kinds, and reads numbers elsewhere."""

    shift = 0.0

    def __init__(self, space):
        super().__init__(space, 6)
        self.equal, self.one = AlwaysEqual(), 1
        self.scale, self.name, self.sizes, self.kernel, self.layers = 2.0, "x", (1, 2), np.ones(3), [self.linear]
        self.dropout = nn.Dropout(0.5)
        self.config = types.SimpleNamespace(scale=1.0, inner=Slotted(), table={"a": 1.0})
        self.trainer, closed = types.SimpleNamespace(steps=0), types.SimpleNamespace(power=1.0)
        self.activation = lambda x: x * closed.power
        self.closed = closed

    def forward(self, x):
        scale = self.one * self.scale * self.config.scale * self.config.inner.scale * self.config.table["a"]
        return self.activation(self.linear(x)) * (scale + self.shift + gain())


class Scaled(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, 8)
        self.net, self.config = nn.Linear(4, 8), types.SimpleNamespace(scale=1.0)

    def forward(self, x):
        return torch.tanh(self.net(x)) * self.config.scale


def make():
    return extractor(Configured)


def attribute(name, value):
    return lambda policy: setattr(policy.features_extractor, name, value)


CHANGES = {
    "forward hook": lambda policy: policy.value_net.register_forward_hook(lambda *_: None),
    "forward pre-hook": lambda policy: policy.value_net.register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda policy: policy.value_net.register_full_backward_hook(lambda *_: None),
    "hook of a parameter": lambda policy: policy.log_std.register_hook(lambda _: None),
    "hook after a gradient": lambda policy: policy.log_std.register_post_accumulate_grad_hook(lambda _: None),
    "forward": lambda policy: setattr(policy.value_net, "forward", torch.relu),
    "replaced module": lambda policy: setattr(policy, "value_net", nn.Linear(7, 1)),
    "replaced inside": lambda policy: policy.mlp_extractor.value_net.__setitem__(1, nn.ReLU()),
    "added module": lambda policy: policy.mlp_extractor.value_net.append(nn.Tanh()),
    "number": attribute("scale", 3.0),
    "string": attribute("name", "y"),
    "tuple": attribute("sizes", (1, 3)),
    "array": attribute("kernel", np.zeros(3)),
    "new attribute": attribute("new", True),
    "probability": lambda policy: setattr(policy.features_extractor.dropout, "p", 0.1),
    "list": lambda policy: policy.features_extractor.layers.clear(),
    "frozen parameter": lambda policy: policy.log_std.requires_grad_(False),
    "replaced parameter": lambda policy: setattr(policy, "log_std", nn.Parameter(torch.zeros(2))),
    "dtype": lambda policy: policy.double(),
    "optimizer": lambda policy: setattr(policy, "optimizer", torch.optim.Adam(policy.parameters())),
    "equal parameter": lambda policy: policy.value_net._parameters.update(bias=nn.Parameter(torch.zeros(1))),
    "equal object": attribute("equal", AlwaysEqual()),
    "order of modules": lambda policy: policy._modules.update(action_net=policy._modules.pop("action_net")),
    "class of a module": lambda policy: setattr(policy.mlp_extractor.value_net[1], "__class__", nn.Sigmoid),
    "dict of a module": lambda policy: setattr(policy.value_net, "__dict__", {**vars(policy.value_net)}),
    "bool": attribute("one", True),
    "method of the distribution": lambda policy: setattr(policy.action_dist, "entropy", lambda: 0.0),
    # What the code reads elsewhere.
    "object": lambda policy: setattr(policy.features_extractor.config, "scale", 0.0),
    "object with slots": lambda policy: setattr(policy.features_extractor.config.inner, "scale", 0.0),
    "another object": attribute("config", types.SimpleNamespace()),
    "dict": lambda policy: policy.features_extractor.config.table.update(a=0.0),
    "object of a closure": lambda policy: setattr(policy.features_extractor.closed, "power", 2.0),
    "class": lambda _: setattr(Configured, "shift", 1.0),
    "method of a class": lambda _: setattr(Configured, "forward", lambda self, x: 2 * self.linear(x)),
    "global": lambda _: globals().update(GAIN=2.0),
    "object of a global": lambda _: setattr(GAINS, "hidden", 2.0),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed(what, monkeypatch):
    for owner, name in ((Configured, "shift"), (Configured, "forward"), (GAINS, "hidden")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # undone after the test
    monkeypatch.setitem(globals(), "GAIN", GAIN)
    policy = make()
    snapshot = Snapshot(policy)
    snapshot.require_pure()
    assert snapshot.is_current()
    CHANGES[what](policy)
    assert not snapshot.is_current()


def test_a_change_of_an_object_that_no_code_names_is_none():
    policy = make()
    snapshot = Snapshot(policy)
    policy.features_extractor.trainer.steps += 1
    assert snapshot.is_current()


def test_numbers_that_change_again_and_again_are_told_from_those_that_changed_once():
    policy = make()
    for scale in (1.0, 0.5, *(1.0, 0.5) * 4):
        policy.features_extractor.config.scale = scale
        export_policy(policy)
    assert not keeps_changing(policy)
    for scale in range(MOST_COMPUTATIONS):
        policy.features_extractor.config.scale = 2.0 + scale
        export_policy(policy)
    assert keeps_changing(policy)


def test_what_is_undone_was_no_change():
    policy = make()
    snapshot = Snapshot(policy)
    handles = [policy.value_net.register_forward_hook(lambda *_: None), policy.log_std.register_hook(lambda _: None)]
    assert not snapshot.is_current()
    for handle in handles:
        handle.remove()
    assert snapshot.is_current()


def test_hooks_of_all_modules_are_noticed_and_refused():
    policy = make()
    snapshot = Snapshot(policy)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not snapshot.is_current()
        with pytest.raises(NotCompilable, match="Forward hooks are registered for all"):
            export_policy(policy)
    finally:
        handle.remove()
    assert snapshot.is_current()


def test_acting_and_learning_change_nothing():
    policy = make()
    snapshot = Snapshot(policy)
    policy.set_training_mode(True)
    observation = batch(policy.observation_space)
    value, log_prob, _ = policy.evaluate_actions(torch.as_tensor(observation), torch.zeros(len(observation), 2))
    (value.sum() + log_prob.sum()).backward()
    policy.optimizer.step()
    policy.predict(observation)
    policy.load_state_dict(policy.state_dict())
    assert snapshot.is_current()


@pytest.mark.thorough
def test_a_training_acts_and_learns_with_the_numbers_of_now(monkeypatch):
    model = bridge.PPO(
        "MlpPolicy",
        DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]),
        n_steps=8,
        batch_size=8,
        n_epochs=1,
        policy_kwargs={"features_extractor_class": Scaled, "net_arch": [8]},
        seed=0,
        device="cpu",
    )
    config = model.policy.features_extractor.config
    spread = {}
    for config.scale in (1.0, 0.0):
        model.learn(8)
        spread[config.scale] = np.ptp(model.rollout_buffer.values)
    assert model.plan.updates
    assert spread[1.0] > 0 == spread[0.0]
    monkeypatch.setattr(exported_network, "MOST_COMPUTATIONS", 1)
    for config.scale in (0.5, 0.0):  # not compiled once more for each
        model.learn(8)
    assert "keep changing" in str(model.plan)
    assert np.ptp(model.rollout_buffer.values) == 0


def test_code_with_anything_in_its_reach_can_be_watched():
    class Reaching(Extractor):
        table = np.zeros(200_000)

        def forward(self, x):
            return self.linear(x) * (1.0 if later is None else later)

        def unused(self):
            return self.table, self.loop, self.model, self.lock, self.module, self.mean, undefined  # noqa: F821

    policy = extractor(Reaching)
    features = policy.features_extractor
    features.loop = [features]
    features.loop.append(features.loop)
    features.model, features.lock, features.module, features.mean = policy, threading.Lock(), types, np.mean
    snapshot = Snapshot(policy)
    assert snapshot.is_current()
    later = None
    assert not snapshot.is_current()
    snapshot = Snapshot(policy)
    snapshot.require_pure()
    later = 2.0
    assert not snapshot.is_current()
