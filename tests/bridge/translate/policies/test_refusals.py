"""Networks that are not translated, for acting or for training only, and the reasons."""

import jax
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common import policies
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn
from torch.nn import functional as F

from bridge.errors import NotCompilable
from bridge.translate.policies.on_policy import export_policy, require_trainable
from bridge.translate.pytorch.modules import read_parameters
from bridge.translate.pytorch.optimizers import export_optimizer
from tests.bridge.translate.policies.networks import (
    SMALL_IMAGE,
    VECTOR,
    Extractor,
    assert_same,
    batch,
    changed,
    extractor,
    forward_of,
    make,
    network_of,
)


def remember(self, x):
    self.seen = x
    return self.linear(x)


def overwrite(self, x):
    y = self.linear(x)
    return F.relu(y, inplace=True) + y


class Gated(Extractor):
    """Part without effect until the gate opens, as in many residual networks."""

    def __init__(self, space):
        super().__init__(space, 6)
        self.gate = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return self.linear(x) + self.gate * x.mean(0)


def count(self, x):
    self._buffers["calls"] += 1
    return self.linear(x)


def counting():
    policy = extractor(forward_of(count))
    policy.features_extractor.register_buffer("calls", torch.zeros(()))
    return policy


def tempered():
    policy = extractor(forward_of(lambda self, x: self.linear(x) * float(self.temperature)))
    policy.features_extractor.register_buffer("temperature", torch.ones(()))
    return policy


def branch(self, x):
    return self.linear(x) if x.sum() > 0 else x


def with_buffer(self, x):
    self.register_buffer("mean", torch.zeros(6), persistent=False) if "mean" not in self._buffers else None
    return self.linear(x - self.mean)


class OwnForward(ActorCriticPolicy):
    def predict_values(self, obs):
        return super().predict_values(obs)


class OwnEvaluation(ActorCriticPolicy):
    def evaluate_actions(self, obs, actions):
        return super().evaluate_actions(obs, actions)


class OwnMlp(ActorCriticPolicy):
    def _build_mlp_extractor(self):
        self.mlp_extractor = type("OwnMlpExtractor", (MlpExtractor,), {})(6, self.net_arch, self.activation_fn)


REFUSALS = {
    "own method": (lambda: make(cls=OwnForward), "OwnForward overrides predict_values"),
    "own mlp": (lambda: make(cls=OwnMlp), "must be SB3's MlpExtractor, got a OwnMlpExtractor"),
    "batch norm": (
        lambda: extractor(network_of(nn.BatchNorm1d(6))),
        r"features_extractor\.layers\.0 \(BatchNorm1d\)",
    ),
    "unknown module": (
        lambda: extractor(network_of(nn.Unflatten(1, (1, 6)), nn.Flatten())),
        r"features_extractor\.layers\.0 \(Unflatten\)",
    ),
    "branch on data": (lambda: extractor(forward_of(branch)), r"features_extractor \(Custom\): symbolically traced"),
    "unknown function": (lambda: extractor(forward_of(lambda self, x: self.linear(x).cumsum(1))), r"cumsum\(\)"),
    "unknown argument": (
        lambda: extractor(forward_of(lambda self, x: self.linear(torch.sub(x, x, alpha=2)))),
        "cannot be translated to JAX: .*sub",
    ),
    "implicit dimension": (
        lambda: extractor(forward_of(lambda self, x: F.softmax(self.linear(x)))),
        "cannot be translated to JAX: 'NoneType'",
    ),
    "another padding": (
        lambda: extractor(network_of(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")), SMALL_IMAGE),
        "padding_mode='reflect' cannot be translated to JAX",
    ),
    "buffer": (lambda: extractor(forward_of(with_buffer)), r"line \d+ of test_refusals.py, .*torch.zeros"),
    "number of a buffer": (tempered, "reads a Tensor, which is not listed"),
    "sets attribute": (
        lambda: extractor(forward_of(remember)),
        "`self.seen`, sets an attribute",
    ),
    "overwrites": (lambda: extractor(forward_of(overwrite)), "in-place relu overwrites a tensor"),
    "always drops": (lambda: extractor(forward_of(lambda self, x: F.dropout(self.linear(x)))), "even in evaluation"),
    "hook": (
        changed(lambda policy: policy.value_net.register_forward_hook(lambda *_: None)),
        r"value_net \(Linear\) has (forward|backward) hooks",
    ),
    "mixes rows": (
        lambda: extractor(forward_of(lambda self, x: self.linear(x - x.mean(0)))),
        "other results for two rows in one batch",
    ),
    "asks what it gets": (
        lambda: extractor(forward_of(lambda self, x: self.linear(x) if isinstance(x, torch.Tensor) else x)),
        "something else when they are traced",
    ),
    "may come to mix rows": (lambda: extractor(Gated), "other results for two rows in one batch"),
    "counts its calls": (lambda: counting(), r"`self._buffers\['calls'\]`, stores into something"),
    "put-in forward": (
        changed(lambda policy: setattr(policy.value_net, "forward", torch.relu)),
        r"value_net \(Linear\) has forward hooks or a replaced forward",
    ),
    "mixed dtypes": (changed(lambda policy: policy.value_net.double()), r"got \['torch.float32', 'torch.float64'\]"),
    "float64": (changed(lambda policy: policy.double()), r"got \['torch.float64'\]"),
    "own distribution": (
        changed(lambda policy: setattr(policy, "action_dist", policies.make_proba_distribution(spaces.Discrete(2)))),
        "CategoricalDistribution over Box",
    ),
    "observations from 1": (lambda: make(spaces.Discrete(3, start=1)), "Observations of Discrete"),
    "actions from 1": (lambda: make(action=spaces.Discrete(3, start=1)), "start at 0"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_refuses_with_a_reason(kind):
    build, message = REFUSALS[kind]
    with pytest.raises(NotCompilable, match=message):
        export_policy(build())


@pytest.mark.parametrize("kind", ["sets attribute", "counts its calls", "always drops", "mixes rows"])
def test_a_refusal_leaves_everything_as_it_was(kind):
    policy = REFUSALS[kind][0]()
    policy.set_training_mode(True)
    drawn, state = torch.get_rng_state(), {name: value.clone() for name, value in policy.state_dict().items()}
    attributes = [dict(vars(module)) for module in policy.modules()]
    with pytest.raises(NotCompilable):
        export_policy(policy)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [dict(vars(module)) for module in policy.modules()] == attributes
    assert all(torch.equal(value, state[name]) for name, value in policy.state_dict().items())


def test_refuses_hooks_of_all_modules():
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(NotCompilable, match="Forward hooks are registered for all"):
            export_policy(make())
    finally:
        handle.remove()


# --- For training only --------------------------------------------------------------------------------------------


def ignored(self, x):
    self.linear(x)
    return x


def without_gradient(self, x):
    with torch.no_grad():
        return self.linear(x)


def regroup(policy):
    rest = [parameter for parameter in policy.parameters() if parameter is not policy.log_std]
    policy.optimizer = torch.optim.Adam([{"params": rest}, {"params": [policy.log_std], "lr": 1e-4}])


# What becomes of a policy, and why it cannot be trained; but it can act.
UNTRAINABLE = {
    "own method": (lambda: make(cls=OwnEvaluation), "OwnEvaluation overrides evaluate_actions"),
    "unused parameter": (
        lambda: extractor(forward_of(lambda self, x: x)),
        r"the parameter features_extractor\.linear\.weight",
    ),
    "unused result": (lambda: extractor(forward_of(ignored)), r"the parameter features_extractor\.linear\.weight"),
    "no gradient": (
        lambda: extractor(forward_of(without_gradient)),
        r"the parameter features_extractor\.linear\.weight",
    ),
    "frozen": (changed(lambda policy: policy.log_std.requires_grad_(False)), "log_std is frozen"),
    "hook of a gradient": (
        changed(lambda policy: policy.log_std.register_hook(lambda _: None)),
        "log_std is frozen or",
    ),
    "hook of the backward pass": (
        changed(lambda policy: policy.value_net.register_full_backward_hook(lambda *_: None)),
        r"value_net \(Linear\) has (forward|backward) hooks",
    ),
    "partial optimizer": (
        changed(lambda policy: setattr(policy, "optimizer", torch.optim.Adam([policy.log_std]))),
        "train all parameters",
    ),
    "two groups": (changed(regroup), "train all parameters"),
    "dropout": (lambda: extractor(network_of(nn.Linear(6, 6), nn.Dropout(0.1))), "as Dropout does"),
}

predict_values = jax.jit(lambda network, vector, x: network.apply(vector, x)[1], static_argnums=0)


@pytest.mark.parametrize("kind", UNTRAINABLE)
def test_what_cannot_be_trained_can_act(kind):
    build, message = UNTRAINABLE[kind]
    policy = build()
    policy.set_training_mode(False)
    network, observation = export_policy(policy), batch(VECTOR)
    got = predict_values(network, read_parameters(policy.parameters()), observation)
    with torch.no_grad():
        expected = policy.predict_values(torch.as_tensor(observation)).flatten()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(NotCompilable, match=message):
        require_trainable(policy, network)


def test_an_optimizer_with_hooks_concerns_the_update_only():
    policy = make()
    policy.optimizer.register_step_post_hook(lambda *_: None)
    require_trainable(policy, export_policy(policy))
    with pytest.raises(NotCompilable, match="Adam has hooks"):
        export_optimizer(policy.optimizer)


@pytest.mark.parametrize(
    ("cls", "active"),
    [
        (network_of(nn.Linear(6, 6), nn.Dropout(0.1)), True),
        (network_of(nn.Linear(6, 6), nn.Dropout(0.0)), False),
        (forward_of(lambda self, x: F.dropout(self.linear(x), 0.1, self.training)), True),
        (forward_of(lambda self, x: self.linear(2 * x if self.training else x)), True),
        (forward_of(lambda self, x: self.linear(x)), False),
    ],
)
def test_tells_whether_training_mode_is_different(cls, active):
    policy = extractor(cls)
    assert export_policy(policy).module.depends_on_training is active
    policy.set_training_mode(False)
    assert_same(policy)
