"""Snapshots notice what makes a translation out of date, and nothing else."""

import numpy as np
import pytest
import torch
from torch import nn

from bridge.translate.snapshot import Snapshot
from tests.bridge.translate.networks import Extractor, batch, extractor


class Configured(Extractor):
    """Has attributes of many kinds."""

    def __init__(self, space):
        super().__init__(space, 6)
        self.scale, self.name, self.sizes, self.kernel, self.layers = 2.0, "x", (1, 2), np.ones(3), [self.linear]
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.linear(x) * self.scale


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
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_noticed(what):
    policy = make()
    snapshot = Snapshot(policy)
    assert snapshot.is_current()
    CHANGES[what](policy)
    assert not snapshot.is_current()


def test_what_is_undone_was_no_change():
    policy = make()
    snapshot = Snapshot(policy)
    handles = [policy.value_net.register_forward_hook(lambda *_: None), policy.log_std.register_hook(lambda _: None)]
    assert not snapshot.is_current()
    for handle in handles:
        handle.remove()
    assert snapshot.is_current()


def test_hooks_of_all_modules_are_noticed():
    snapshot = Snapshot(make())
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not snapshot.is_current()
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
