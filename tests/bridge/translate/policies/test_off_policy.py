"""Policies of off-policy algorithms in JAX: the same numbers and gradients, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib.common.torch_layers import BatchRenorm1d
from sb3_contrib.crossq.policies import CrossQPolicy
from sb3_contrib.tqc.policies import TQCPolicy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from bridge.engine.learner import Learner
from bridge.errors import NotCompilable
from bridge.translate.policies.off_policy import export_actor, export_off_policy, learned_tensors, own_parameters
from bridge.translate.policies.off_policy_networks import ExportedTD3Policy
from bridge.translate.pytorch.operations import MODULES
from tests.bridge.translate.policies.networks import (
    BATCH,
    VECTOR,
    Extractor,
    batch,
    holds_torch,
    network_of,
)
from tests.bridge.translate.policies.off_policies import MATRIX, POLICIES, make, results_in_torch, standard_normal

SHARED = {"features_extractor_class": Extractor, "share_features_extractor": True}


@functools.partial(jax.jit, static_argnums=0)
def results(exported, params, targets, observation, action, noise):
    weights = jnp.linspace(1, 2, BATCH)
    seen = {name: [targets[each] for each in targets if each == f"{name}_statistics"] for name in ("actor", "critic")}
    if len(params) == 1:
        [(name, vector)] = params.items()

        def loss(vector):
            values = getattr(exported, name).apply(vector, observation)
            return (weights @ (values**2).reshape(BATCH, -1)).sum(), values

        gradient, values = jax.grad(loss, has_aux=True)(vector)
        return {"values": values, "network": gradient}

    def critic_loss(vector):
        full = exported.critic_params({**params, "critic": vector})
        values = exported.critic.apply(full, observation, action, *seen["critic"])
        return (values**2 @ weights).sum(), values

    def actor_loss(vector):
        given = exported.actor.apply(vector, observation, *seen["actor"])
        critic = jax.lax.stop_gradient(exported.critic_params(params))
        if isinstance(exported, ExportedTD3Policy):
            return -(exported.critic.apply(critic, observation, given)[0] @ weights), {"actions": given}
        actions, log_prob = given.sample_and_log_prob(noise)
        values = exported.critic.apply(critic, observation, actions, *seen["critic"])
        least = values.reshape(-1, BATCH).min(axis=0)
        return (0.3 * log_prob - least) @ weights, {"actions": actions, "log_prob": log_prob}

    critic, values = jax.grad(critic_loss, has_aux=True)(params["critic"])
    actor, given = jax.grad(actor_loss, has_aux=True)(params["actor"])
    return {"values": values, "critic": critic, "actor": actor, **given}


@pytest.mark.thorough(but=["dqn", "td3 with a shared extractor"])
@pytest.mark.parametrize("kind", POLICIES)
def test_equals_torch(kind, monkeypatch):
    policy = POLICIES[kind]()
    observation, action = batch(policy.observation_space), batch(policy.action_space).reshape(BATCH, -1)
    exported = export_off_policy(policy)
    learner = Learner(*learned_tensors(policy))
    params, targets, _ = learner.vectors()
    noise = standard_normal(policy) if isinstance(policy, SACPolicy | TQCPolicy | CrossQPolicy) else None
    got = results(exported, params, targets, observation, action, noise)
    expected = results_in_torch(policy, observation, action, monkeypatch)
    assert got.keys() == expected.keys()
    vectors = {each.length: each for each in learner._params.values()}
    for name, ours in got.items():
        assert ours.dtype == "float32"
        if name in ("network", "actor", "critic"):  # gradients, with gaps
            ours = np.concatenate(vectors[len(ours)].parts(ours))
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(ours, expected[name], rtol=1e-5, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize("cls", [SACPolicy, TD3Policy])
def test_actions_are_unscaled_as_by_sb3(cls):
    policy = make(cls, action=MATRIX)
    action = np.array([[-1.0, 0.25], [0.5, 1.0]], np.float32)
    expected = policy.unscale_action(action.reshape(-1, *MATRIX.shape))
    for exported in (export_actor(policy), export_off_policy(policy)):
        np.testing.assert_allclose(exported.to_env(jnp.asarray(action)), expected, rtol=1e-6)


@pytest.mark.parametrize("cls", [DQNPolicy, SACPolicy, TD3Policy])
def test_policies_of_one_architecture_share_programs(cls):
    one, other = (export_off_policy(make(cls)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert not holds_torch(one)
    assert one != export_off_policy(make(cls, net_arch=(9,)))
    assert one != export_off_policy(make(cls, activation_fn=nn.Tanh))


# --- What is refused, beside docs/not-compiled.md -------------------------------------------------------------------


RENORMALIZED = {"features_extractor_class": network_of(nn.Linear(6, 6), BatchRenorm1d(6))}
NO_ACTING = {
    "another policy": (lambda: ActorCriticPolicy(VECTOR, MATRIX, lambda _: 1e-3), "got a ActorCriticPolicy"),
    "integers": (lambda: make(action=spaces.Box(0, 5, (2,), np.int32)), "action space must be a Discrete"),
    "batch renormalisation elsewhere": (
        lambda: make(DQNPolicy, **RENORMALIZED),
        "have running statistics, .*: features_extractor",
    ),
    "batch renormalisation of an extractor": (
        lambda: make(CrossQPolicy, **RENORMALIZED),
        "features_extractor.* cannot be translated",
    ),
}


def test_what_is_translated_does_not_depend_on_what_was_imported():
    export_actor(make(CrossQPolicy))
    assert BatchRenorm1d not in MODULES


@pytest.mark.parametrize("kind", NO_ACTING)
def test_refuses_with_a_reason(kind):
    build, message = NO_ACTING[kind]
    policy = build()
    for export in (export_actor, export_off_policy):
        with pytest.raises(NotCompilable, match=message):
            export(policy)


def test_an_optimizer_may_hold_the_shared_extractor_that_it_does_not_train():
    policy = make(TD3Policy, **SHARED)
    extractor = set(policy.actor.features_extractor.parameters())
    assert extractor <= set(policy.critic.optimizer.param_groups[0]["params"])
    assert not extractor & set(own_parameters(policy.critic))
    export_off_policy(policy)
