"""Policies of Stable-Baselines3 in JAX: the same numbers and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticCnnPolicy, MultiInputActorCriticPolicy
from torch import nn
from torch.nn import functional as F

from bridge.errors import NotCompilable
from bridge.translate.policies.on_policy import export_policy
from bridge.translate.pytorch.modules import read_parameters
from tests.bridge.translate.policies.networks import (
    DICT,
    IMAGE,
    PAIR,
    SMALL_IMAGE,
    VECTOR,
    Combined,
    Extractor,
    Functional,
    ResidualCNN,
    assert_same,
    batch,
    extractor,
    forward_of,
    holds_torch,
    make,
    network_of,
)

POLICIES = {
    "categorical": lambda: make(action=spaces.Discrete(3)),
    "multi categorical": lambda: make(action=spaces.MultiDiscrete([2, 3, 4])),
    "bernoulli": lambda: make(action=spaces.MultiBinary(3)),
    "gaussian": lambda: make(),
    "without hidden layers": lambda: make(net_arch=[]),
    "of other depths": lambda: make(net_arch={"pi": [5, 6, 7]}, activation_fn=nn.ReLU),
    "gsde": lambda: make(use_sde=True),
    "gsde of few parameters": lambda: make(use_sde=True, full_std=False, use_expln=True, log_std_init=-0.1),
    "gsde squashed": lambda: make(use_sde=True, squash_output=True, use_expln=True),
    "on a matrix": lambda: make(spaces.Box(-1.0, 1.0, (2, 3), np.float64), spaces.Box(-1.0, 1.0, (2, 2))),
    "on discrete": lambda: make(spaces.Discrete(4)),
    "on multi discrete": lambda: make(spaces.MultiDiscrete([2, 3])),
    "on multi binary": lambda: make(spaces.MultiBinary(3)),
    "on images": lambda: make(IMAGE, cls=ActorCriticCnnPolicy, features_extractor_kwargs={"features_dim": 8}),
    "on images as they are": lambda: make(IMAGE, normalize_images=False, log_std_init=3.0),
    "on images by two extractors": lambda: make(SMALL_IMAGE, share_features_extractor=False),
    "on a dict": lambda: make(DICT, cls=MultiInputActorCriticPolicy, features_extractor_kwargs={"cnn_output_dim": 8}),
    "a residual cnn": lambda: extractor(ResidualCNN, SMALL_IMAGE),
    "two of a user's extractors": lambda: extractor(Extractor, share_features_extractor=False),
    "an extractor of a dict": lambda: extractor(Combined, DICT),
    "an extractor of functions": lambda: extractor(Functional),
}


@pytest.mark.thorough(but=["categorical", "a residual cnn"])
@pytest.mark.parametrize("kind", POLICIES)
def test_equals_torch_in_float64(kind, x64, monkeypatch):
    policy = POLICIES[kind]().double()
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # by which SB3 encodes observations
    assert_same(policy, "float64", 1e-12)


@pytest.mark.thorough(but=["gsde squashed"])
@pytest.mark.parametrize("kind", ["categorical", "gaussian", "gsde squashed", "on images"])
def test_equals_torch_in_float32(kind):
    assert_same(POLICIES[kind]())


def test_discrete_observations_come_with_or_without_an_axis():
    policy = make(spaces.Discrete(4))
    network, vector, observation = export_policy(policy), read_parameters(policy.parameters()), np.array([0, 3])
    flat, column = (network.apply(vector, shape)[1] for shape in (observation, observation[:, None]))
    np.testing.assert_array_equal(flat, column)


def test_observations_are_checked_and_converted_on_the_host():
    space = spaces.Dict({"number": spaces.Discrete(3), "count": spaces.Box(0, 2**40, (1,), np.int64)})
    network = export_policy(make(space, cls=MultiInputActorCriticPolicy))
    observation = {"number": np.array([2, 0]), "count": np.array([[5], [2**33]])}
    assert network.from_host(observation)["count"].dtype == "float32"
    for number, message in ((3, "Class values must be smaller than num_classes"), (-1, "must be non-negative")):
        with pytest.raises(RuntimeError, match=message):
            network.from_host({**observation, "number": np.array([0, number])})


# --- Actions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "sampled", "expected"),
    [
        (PAIR, [[-5.0, -5.0], [0.5, 2.5], [5.0, 5.0]], [[-1, -2], [0.5, 2.5], [1, 3]]),
        (spaces.Discrete(3), [2, 0], [2, 0]),
    ],
)
def test_actions_of_a_box_are_clipped_and_others_stay(space, sampled, expected):
    np.testing.assert_array_equal(export_policy(make(action=space)).to_env(jnp.array(sampled)), expected)


def test_squashed_actions_are_unscaled():
    policy = make(action=spaces.Box(-2.0, 4.0, (2, 1)), use_sde=True, squash_output=True)
    action = np.array([[-1.0, 0.25], [0.0, 1.0]], np.float32)
    expected = policy.unscale_action(action.reshape(-1, 2, 1))
    np.testing.assert_allclose(export_policy(policy).to_env(jnp.asarray(action)), expected, rtol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"use_sde": True, "squash_output": True}])
def test_actions_have_the_dtype_of_their_space(settings, x64):
    network = export_policy(make(action=PAIR, **settings))
    assert network.to_env(jnp.zeros((3, 2), "float64")).dtype == "float32"


# --- What a network is --------------------------------------------------------------------------------------------


def test_policies_of_one_architecture_share_programs():
    one, other = make(), make()
    with torch.no_grad():
        other.log_std.add_(1)
    assert export_policy(one) == export_policy(other)
    assert hash(export_policy(one)) == hash(export_policy(other))
    traced = []
    value = jax.jit(lambda network, vector, x: traced.append(0) or network.apply(vector, x)[1], static_argnums=0)
    for policy in (one, other):
        value(export_policy(policy), read_parameters(policy.parameters()), batch(VECTOR))
    assert len(traced) == 1


@pytest.mark.parametrize("settings", [{"net_arch": [9]}, {"activation_fn": nn.ReLU}, {"use_sde": True}])
def test_policies_of_other_architectures_differ(settings):
    assert export_policy(make(**settings)) != export_policy(make())


def test_network_holds_nothing_of_torch():
    assert not holds_torch(export_policy(POLICIES["on a dict"]()))


@pytest.mark.thorough
def test_gradient_of_unravelling_writes_every_part_once():
    policy = make()
    network = export_policy(policy)
    gradient = jax.grad(lambda vector: sum((part**2).sum() for part in network.named(vector).values()))
    vector = read_parameters(policy.parameters())
    primitives = [equation.primitive.name for equation in jax.make_jaxpr(gradient)(vector).eqns]
    assert primitives.count("dynamic_update_slice") == len(list(policy.parameters()))
    assert not {*primitives} & {"pad", "scatter", "add_any"}
    np.testing.assert_allclose(gradient(vector), 2 * vector)


def test_exporting_changes_nothing_in_the_policy():
    policy = make()
    policy.set_training_mode(True)
    policy.value_net.eval()
    before = [(module.training, set(vars(module))) for module in policy.modules()]
    export_policy(policy)
    assert [(module.training, set(vars(module))) for module in policy.modules()] == before


@pytest.mark.thorough
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


# --- What is refused, beside docs/not-compiled.md -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: make(spaces.Discrete(3, start=1)), "Observations of Discrete"),
        (lambda: make(action=spaces.Discrete(3, start=1)), "start at 0"),
        (lambda: make(action=spaces.Box(-1, 1, (2,), np.float16)), "would be rounded for the action space"),
        (
            lambda: extractor(network_of(nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")), SMALL_IMAGE),
            "padding_mode='reflect' cannot be translated to JAX",
        ),
    ],
)
def test_refuses_with_a_reason(build, message):
    with pytest.raises(NotCompilable, match=message):
        export_policy(build())
