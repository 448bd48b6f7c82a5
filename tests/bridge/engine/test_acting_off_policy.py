"""Policies of off-policy algorithms as one program a step, and in `predict`: SB3's actions."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch
from sb3_contrib.qrdqn.policies import QRDQNPolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy

from bridge.algorithms.common.predicting import Predictor
from bridge.engine.acting import Actor, NoiseSource
from bridge.translate.policies.off_policy import acting_part, acting_tensors, export_acting
from tests.bridge.translate.policies.networks import VECTOR, batch
from tests.bridge.translate.policies.off_policies import MATRIX, POLICIES, make

KINDS = ["dqn", "dqn on discrete", "sac on a dict", "sac on discrete", "gsde", "td3", "td3 of one critic"]
KINDS += ["qrdqn", "tqc", "crossq"]


def actor_of(policy):
    network = export_acting(policy)
    return Actor(network, acting_tensors(policy, network))


@pytest.mark.thorough(but=["dqn", "gsde"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_actions_are_sb3s(kind):
    policy = POLICIES[kind]()
    observation = batch(policy.observation_space)
    expected, _ = policy.predict(observation, deterministic=True)
    action, to_env = actor_of(policy).act(observation, None)
    np.testing.assert_allclose(to_env, expected, rtol=1e-5, atol=1e-5)
    if not isinstance(policy, DQNPolicy | QRDQNPolicy):
        np.testing.assert_allclose(action.reshape(expected.shape), policy.scale_action(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_predict_gives_sb3s_actions(kind, compiled_predict, monkeypatch):
    policy = POLICIES[kind]()
    several = batch(policy.observation_space)
    one = jax.tree.map(lambda leaf: leaf[0], several)
    predictor = Predictor(policy, compiles=True)
    expected = [policy.predict(observation, deterministic=True)[0] for observation in (one, several)]
    monkeypatch.setattr(acting_part(policy), "forward", None)  # nothing calls it
    for observation, theirs in zip((one, several), expected):
        ours, _ = predictor.predict(observation, deterministic=True)
        assert (type(ours), ours.shape) == (type(theirs), theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_samples_of_sac_are_distributed_as_sb3s():
    policy = make(action=MATRIX)
    observation = np.tile(batch(VECTOR)[:1], (4000, 1))
    actor = actor_of(policy)
    torch.manual_seed(0)
    _, ours = actor.act(observation, actor.draw_noise(len(observation), 1, 1)[0])
    theirs, _ = policy.predict(observation)
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.08)
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), atol=0.08)


def test_one_key_of_gsde_is_one_matrix_of_each_environment():
    policy = make(use_sde=True)
    actor = actor_of(policy)
    torch.manual_seed(0)
    noise = actor.draw_noise(5, 4, 2)
    observation = batch(VECTOR)
    first, second, third = (actor.act(observation, noise[step])[0] for step in range(3))
    np.testing.assert_array_equal(first, second)
    assert (np.abs(first - third) > 1e-4).all()
    same, _ = actor.act(np.tile(observation[:1], (5, 1)), noise[0])
    assert len(np.unique(same[:, 0])) == 5


@pytest.mark.parametrize(
    ("kind", "draw"),
    {
        "box": torch.randn,
        "multi_binary": lambda shape: torch.logit(torch.rand(shape), eps=1e-7),
        "discrete": lambda shape: -torch.empty(shape).exponential_().log(),
    }.items(),
)
def test_noise_drawn_into_kept_memory_has_the_same_bits(kind, draw):
    network = SimpleNamespace(head=SimpleNamespace(kind=kind, size=3), exploration=None)
    source = NoiseSource(network)
    for rows in (1, 40, 1):
        torch.manual_seed(rows)
        expected = [draw((rows, 3)).numpy() for _ in range(2)]
        torch.manual_seed(rows)
        drawn = [source(rows) for _ in range(2)]  # the second draw leaves the first alone
        np.testing.assert_array_equal(drawn, expected)
        torch.manual_seed(rows)
        drawn = Actor.draw_noise(SimpleNamespace(network=network), rows, n_steps=1, sde_sample_freq=1)
        np.testing.assert_array_equal(drawn[0], expected[0])


@pytest.mark.parametrize("cls", [DQNPolicy, TD3Policy])
def test_policies_that_draw_nothing_leave_the_generator_alone(cls, compiled_predict):
    policy = make(cls)
    actor, state = actor_of(policy), torch.get_rng_state()
    assert actor.draw_noise(5, 4, 1) is None
    ours, _ = Predictor(policy, compiles=True).predict(batch(VECTOR), deterministic=False)
    np.testing.assert_array_equal(ours, actor.act(batch(VECTOR), None)[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_nan_is_an_error_where_it_is_one_of_sb3s():
    sac, td3 = make(SACPolicy), make(TD3Policy)
    for policy in (sac, td3):
        torch.nn.init.constant_(policy.actor.mu[0].bias if policy is td3 else policy.actor.mu.bias, torch.nan)
    with pytest.raises(ValueError, match="distribution is NaN"):
        actor_of(sac).act(batch(VECTOR), None)
    assert np.isnan(actor_of(td3).act(batch(VECTOR), None)[1]).all()


def test_new_weights_count_from_the_next_call_on(compiled_predict):
    policy = make(TD3Policy)
    actor, predictor = actor_of(policy), Predictor(policy, compiles=True)
    observation = batch(VECTOR)
    policy.load_state_dict({name: torch.zeros_like(value) for name, value in policy.state_dict().items()})
    np.testing.assert_array_equal(actor.act(observation, None)[0], 0)
    np.testing.assert_allclose(predictor.predict(observation, True)[0], np.tile([0, 0.5], (5, 1)), atol=1e-6)


def test_predict_notices_what_others_change_in_the_policy():
    policy = make()
    predictor = Predictor(policy, compiles=True)
    assert predictor.is_current(policy)
    policy.critic.qf0.register_forward_hook(lambda *_: None)  # which does not act
    assert predictor.is_current(policy)
    policy._predict = lambda observation, deterministic: observation
    assert not predictor.is_current(policy)
    predictor = Predictor(make(), compiles=True)
    predictor._policy.actor.mu.register_forward_hook(lambda *_: None)
    assert not predictor.is_current(predictor._policy)
