"""Weights and moments pass from PyTorch to compiled functions and back bit for bit, also if user code changes them."""

import itertools

import jax
import numpy as np
import pytest
import torch
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.td3.policies import TD3Policy

from bridge.engine import learner
from bridge.engine.learner import Learner
from bridge.errors import NotCompilable
from bridge.translate.policies.off_policy import learned_tensors
from bridge.translate.pytorch.modules import read_parameters
from tests.bridge.translate.policies.networks import SMALL_IMAGE, Extractor, ResidualCNN
from tests.bridge.translate.policies.off_policies import make

SHARED = {"features_extractor_class": Extractor, "share_features_extractor": True}
POLICIES = {
    "dqn": lambda: (make(DQNPolicy), False),
    "sac": lambda: (make(), True),
    "sac with a fixed entropy coefficient": lambda: (make(), False),
    "sac with a shared extractor": lambda: (make(**SHARED), True),
    "td3": lambda: (make(TD3Policy), False),
    "td3 with a shared extractor": lambda: (make(TD3Policy, **SHARED), False),
    "adamw": lambda: (make(optimizer_class=torch.optim.AdamW, optimizer_kwargs={"weight_decay": 0.1}), True),
    "rmsprop": lambda: (make(optimizer_class=torch.optim.RMSprop, optimizer_kwargs={"momentum": 0.9}), False),
    "rmsprop like tf": lambda: (make(optimizer_class=RMSpropTFLike), False),
    "sgd": lambda: (make(DQNPolicy, optimizer_class=torch.optim.SGD), False),
}
every_policy = pytest.mark.parametrize("kind", POLICIES)


@pytest.fixture(params=["vectors", "parts"])
def layout(request, monkeypatch):
    """How compiled functions take the numbers: these small networks as if they were large, too."""
    if request.param == "parts":
        monkeypatch.setattr(learner, "SPLIT_FROM", 0)
    return request.param


def build(kind, steps=2):
    """A policy whose optimisers took some steps, the entropy coefficient with its optimiser, and where all this is."""
    policy, has_entropy = POLICIES[kind]()
    coefficient = torch.zeros(1, requires_grad=True)
    entropy = (coefficient, torch.optim.Adam([coefficient], lr=1e-3)) if has_entropy else None
    state = Learner(*learned_tensors(policy, entropy))
    for _ in range(steps):
        step(policy, entropy, state)
    return policy, entropy, state


def step(policy, entropy, state):
    """Only what the state trains gets a gradient, as in SB3."""
    for name, optimizer in state.optimizers.items():
        parameters = state._params[name].tensors
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None


def tensors_of(state):
    return [vector.tensors for vector in (*state._params.values(), *state._targets.values())]


def moments(optimizer, parameters=None):
    """What the optimizer keeps: by name, the numbers of all parameters, end to end."""
    entries = [optimizer.state[each] for each in (parameters or optimizer.param_groups[0]["params"])]
    return {name: np.array([number for entry in entries for number in np.ravel(entry[name])]) for name in entries[0]}


def without_gaps(vector, numbers):
    return np.concatenate(vector.parts(numbers))


def kept(policy, entropy):
    """Copies of all that a zip has."""
    optimizers = [getattr(each, "optimizer", None) for each in policy.modules()]
    optimizers = [each for each in optimizers if each is not None]
    parts = [policy.state_dict(), *(each.state_dict() for each in optimizers)]
    if entropy is not None:
        parts += [entropy[0].detach(), entropy[1].state_dict()]
    return jax.tree.map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, parts)


def assert_same(these, those):
    assert jax.tree.structure(these) == jax.tree.structure(those)
    for this, that in zip(jax.tree.leaves(these), jax.tree.leaves(those)):
        assert torch.equal(this, that) if isinstance(this, torch.Tensor) else this == that


@every_policy
def test_what_is_read_and_written_is_the_same_bit_for_bit(kind, layout):
    policy, entropy, state = build(kind)
    before = kept(policy, entropy)
    read = jax.tree.map(np.array, state.vectors())
    assert {type(each) for each in read[1].values()} == {tuple if layout == "parts" else np.ndarray}
    with torch.no_grad():
        for tensor in itertools.chain(*tensors_of(state)):
            tensor.zero_()
    step(policy, entropy, state)
    state.write_back(*jax.jit(lambda *given: given)(*read))
    assert_same(kept(policy, entropy), before)


@every_policy
def test_a_policy_that_never_learned_learns_what_another_did(kind, layout):
    new, learned = build(kind, steps=0), build(kind)
    new[2].write_back(*jax.tree.map(np.array, learned[2].vectors()))
    assert_same(kept(*new[:2]), kept(*learned[:2]))
    jax.tree.map(np.testing.assert_array_equal, new[2].vectors(), learned[2].vectors())


@every_policy
def test_parts_have_the_names_of_learn(kind):
    policy, _, state = build(kind)
    params, targets, states = state.vectors()
    for name, optimizer in state.optimizers.items():
        vector = state._params[name]
        np.testing.assert_array_equal(without_gaps(vector, params[name]), read_parameters(vector.tensors))
        expected = moments(optimizer, vector.tensors)
        for each, leaf in zip(state._moments[name]._names, jax.tree.leaves(states[name]), strict=True):
            got = [leaf] * len(vector.tensors) if each == "step" else without_gaps(vector, leaf)
            np.testing.assert_array_equal(got, expected[each])
    names = {"q_net": ["q_net_target"], "actor": ["actor_target"] * isinstance(policy, TD3Policy) + ["critic_target"]}
    assert sorted(targets) == names[next(iter(params))]


def test_weights_that_others_change_in_between_are_seen():
    policy, _, state = build("dqn")
    for change in (
        lambda: policy.load_state_dict({name: value + 1 for name, value in policy.state_dict().items()}),
        lambda: policy.q_net.q_net[0].weight.data.mul_(2),
        lambda: setattr(policy.q_net.q_net[0].weight, "data", torch.ones_like(policy.q_net.q_net[0].weight)),
    ):
        state.vectors()
        change()
        params, _, _ = state.vectors()
        got = without_gaps(state._params["q_net"], params["q_net"])
        np.testing.assert_array_equal(got, read_parameters(policy.q_net.parameters()))


def test_results_reach_weights_where_a_user_has_moved_them():
    policy, _, state = build("sac")
    params, targets, states = jax.tree.map(np.array, state.vectors())
    moved = list(policy.actor.parameters())
    for parameter in moved:
        parameter.data = torch.zeros_like(parameter)
    state.write_back(params, targets, states)
    np.testing.assert_array_equal(read_parameters(moved), without_gaps(state._params["actor"], params["actor"]))


def test_moments_that_others_load_in_between_are_seen_and_written(layout):
    policy, _, state = build("sac")
    other, _, _ = build("sac", steps=5)
    state.vectors()
    policy.critic.optimizer.load_state_dict(other.critic.optimizer.state_dict())
    expected = moments(other.critic.optimizer)
    params, targets, states = state.vectors()
    state.write_back(params, targets, jax.tree.map(lambda leaf: np.array(leaf) + leaf.dtype.type(1), states))
    for name, now in moments(policy.critic.optimizer).items():
        np.testing.assert_array_equal(now, expected[name] + 1)


def test_weights_with_their_channels_last_are_read_and_written_in_their_order():
    policy = make(DQNPolicy, SMALL_IMAGE, features_extractor_class=ResidualCNN)
    policy.to(memory_format=torch.channels_last)
    assert not all(weight.is_contiguous() for weight in policy.parameters())
    state, target = Learner(*learned_tensors(policy)), policy.q_net_target
    params, _, states = state.vectors()
    got = without_gaps(state._params["q_net"], params["q_net"])
    np.testing.assert_array_equal(got, read_parameters(policy.q_net.parameters()))
    state.write_back(params, {"q_net_target": params["q_net"]}, states)
    for name, weight in policy.q_net.named_parameters():
        assert torch.equal(weight, target.get_parameter(name))


def test_refuses_a_vector_of_another_length_and_changes_nothing(layout):
    policy, entropy, state = build("td3")
    before = kept(policy, entropy)
    params, targets, states = state.vectors()
    other, message = np.zeros(3, np.float32), r"must have \d+ numbers, got the shape \(3,\)"
    if layout == "parts":
        other, message = (other,) * len(params["critic"]), r"parts must have \[.*\] numbers, got \[3, 3"
    with pytest.raises(ValueError, match=message):
        state.write_back({**params, "critic": other}, targets, states)
    assert_same(kept(policy, entropy), before)


def test_the_parameters_that_became_nan_are_counted(layout):
    policy, entropy, state = build("td3")
    before = kept(policy, entropy)
    params, targets, states = jax.tree.map(np.array, state.vectors())
    jax.tree.leaves(params["critic"])[0][:2] = np.nan
    with pytest.raises(ValueError, match=r"made 2 of \d+ parameters of critic NaN"):
        state.write_back(params, targets, states)
    assert_same(kept(policy, entropy), before)


def test_refuses_parameters_that_took_different_numbers_of_steps():
    policy, _, state = build("dqn")
    policy.optimizer.state[policy.q_net.q_net[0].weight]["step"] += 1
    with pytest.raises(NotCompilable, match=r"same number of optimizer steps, got \[2, 3\]"):
        state.vectors()


def test_refuses_an_entropy_coefficient_that_its_optimizer_does_not_train():
    coefficient = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=1e-3)
    with pytest.raises(NotCompilable, match="must train only log_ent_coef"):
        Learner(*learned_tensors(make(), (coefficient, optimizer)))
