"""The arithmetic of sb3-contrib's RecurrentPPO: the same weights, rollout and cut of it give the same update."""

import copy

import numpy as np
import pytest
import sb3_contrib
import torch

import bridge
from jaxenvs.learn.on_policy.recurrent_ppo import in_rows
from tests.bridge.algorithms.cases import weights
from tests.bridge.algorithms.on_policy import test_arithmetic
from tests.environments import Counter

N_STEPS, N_ENVS, SIZE = 128, 2, 256
float64 = test_arithmetic.float64
# What differs from the defaults: of the kind of actions, of the policy and of the algorithm.
CASES = {
    "own": ("discrete", {}, {}),
    "own, two layers": ("box", {"n_lstm_layers": 2}, {"ent_coef": 0.01, "clip_range_vf": 0.1}),
    "shared": ("discrete", {"shared_lstm": True, "enable_critic_lstm": False}, {}),
    "none": ("multi_discrete", {"enable_critic_lstm": False}, {"normalize_advantage": False}),
}


def make_pair(case, **settings):
    kind, of_policy, own = CASES[case]
    env = bridge.JaxVecEnv(Counter(action_kind=kind), N_ENVS)
    settings |= {"policy_kwargs": {"net_arch": [8], "lstm_hidden_size": 8, **of_policy}, "seed": 0, **own}
    pair = [package.RecurrentPPO("MlpLstmPolicy", env, **copy.deepcopy(settings)) for package in (sb3_contrib, bridge)]
    return test_arithmetic.alike(*pair, fill)


def fill(model):
    """A rollout that the policy might have made some updates ago, of episodes that begin now and then."""
    rng, buffer = np.random.default_rng(0), model.rollout_buffer
    dtype = next(model.policy.parameters()).detach().numpy().dtype

    def numbers(*shape):
        return rng.normal(size=(N_STEPS, N_ENVS, *shape)).astype(dtype)

    buffer.observations = numbers(2)
    buffer.actions = np.stack([[model.action_space.sample() for _ in range(N_ENVS)] for _ in range(N_STEPS)]).reshape(
        N_STEPS, N_ENVS, buffer.action_dim
    )
    buffer.values, buffer.advantages, buffer.rewards = numbers(), numbers(), numbers()
    buffer.log_probs = -1 + 0.2 * numbers()
    buffer.returns = buffer.advantages + buffer.values
    buffer.episode_starts = (rng.random((N_STEPS, N_ENVS)) < 0.04).astype(dtype)
    assert 5 < buffer.episode_starts.sum() < 20
    for name in ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"):
        setattr(buffer, name, rng.uniform(-0.5, 0.5, buffer.hidden_state_shape).astype(dtype))
    buffer.full = True


@pytest.fixture
def same_cut(monkeypatch):
    """Return a function that sets, for a number of epochs, the steps at which both libraries begin them."""

    def set_cut(n_epochs):
        begin = np.random.default_rng(1).integers(SIZE, size=n_epochs)
        of_stock = iter(begin)
        monkeypatch.setattr(np.random, "randint", lambda _: next(of_stock))
        orders = np.asarray(in_rows(begin.astype(np.int32), N_STEPS, N_ENVS))
        test_arithmetic.update_in_order(monkeypatch, orders)

    return set_cut


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_one_step(case, same_cut):
    stock, ours = make_pair(case, batch_size=SIZE, n_epochs=1)
    same_cut(1)
    before = weights(stock)
    test_arithmetic.train_both(stock, ours)
    test_arithmetic.assert_same(stock, ours, 1e-5)
    moved = weights(stock) - before
    np.testing.assert_allclose(weights(ours) - before, moved, atol=5e-3 * np.abs(moved).max())


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_a_hundred_steps_through_128_each_with_resets_in_float64(case, same_cut, float64):
    stock, ours = make_pair(case, batch_size=N_STEPS, n_epochs=50)  # two minibatches of each
    same_cut(50)
    test_arithmetic.train_both(stock, ours)
    test_arithmetic.assert_same(stock, ours, 1e-8)


@pytest.mark.thorough  # of PPO: test_arithmetic.py
def test_an_update_takes_a_rollout_that_sb3_contrib_has_flattened(same_cut):
    models = [make_pair("own", batch_size=SIZE, n_epochs=1)[1] for _ in range(2)]
    same_cut(2)
    next(iter(models[1].rollout_buffer.get(SIZE)))  # which puts the steps of an environment one after the other
    same_cut(1)
    for model in models:
        model.train()
        same_cut(1)
    one, other = (weights(model) for model in models)
    np.testing.assert_array_equal(one, other)
    assert torch.is_tensor(models[0]._last_lstm_states.pi[0])
