"""bridge.RecurrentPPO instead of sb3-contrib's: LSTM states continue, and everything else stays the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sb3_contrib
import torch
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.env_util import make_vec_env as make_gym_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

import bridge
from bridge import make_vec_env
from tests.bridge.algorithms import cases
from tests.environments import Counter

N_ENVS, N_STEPS = 4, 16
ROLLOUT = N_ENVS * N_STEPS
SMALL = {"net_arch": [8], "lstm_hidden_size": 8}
CRITICS = {
    "own": {},
    "own, two layers": {"n_lstm_layers": 2},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "none": {"enable_critic_lstm": False},
}


def jax_env():
    return cases.make_env("RecurrentPPO")


def host_env():
    env = make_gym_vec_env("CartPole-v1", N_ENVS, seed=0)
    for each in env.envs:
        each.get_wrapper_attr("spec").max_episode_steps = 12
    return env


def make(env, package=bridge, critic="own", **settings):
    return cases.make("RecurrentPPO", env, package, policy_kwargs=SMALL | CRITICS[critic], **settings)


# --- Collecting -----------------------------------------------------------------------------------------------------


def states_of(buffer, step):
    """RNNStates before a step."""
    parts = ((f"hidden_states_{name}", f"cell_states_{name}") for name in ("pi", "vf"))
    return RNNStates(*(tuple(torch.tensor(getattr(buffer, each)[step]) for each in pair) for pair in parts))


CASES = [(make_env, critic) for make_env in (jax_env, host_env) for critic in CRITICS]


@pytest.mark.thorough
@pytest.mark.parametrize(("make_env", "critic"), CASES)
def test_rollouts_hold_what_the_torch_policy_thinks_and_remembers_step_by_step(make_env, critic):
    model = make(make_env(), critic=critic)
    assert str(model.plan).startswith(f"collecting: {'compiled' if make_env is jax_env else 'acting compiled'}")
    _, callback = model._setup_learn(2 * ROLLOUT)
    buffer, policy, ended = model.rollout_buffer, model.policy, 0
    for _ in range(2):
        before = model._last_lstm_states
        assert model.collect_rollouts(model.env, callback, buffer, N_STEPS)
        for part, given in zip(jax.tree.leaves(states_of(buffer, 0)), jax.tree.leaves(tuple(before))):
            np.testing.assert_array_equal(part, given)
        for step in range(N_STEPS):
            starts, states = torch.tensor(buffer.episode_starts[step]), states_of(buffer, step)
            observation, action = torch.tensor(buffer.observations[step]), torch.tensor(buffer.actions[step, :, 0])
            with torch.no_grad():
                values, log_probs, _ = policy.evaluate_actions(observation, action, states, starts)
                after = policy(observation, states, starts)[3]
            np.testing.assert_allclose(buffer.values[step], values.flatten(), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(buffer.log_probs[step], log_probs, rtol=1e-4, atol=1e-5)
            held = states_of(buffer, step + 1) if step + 1 < N_STEPS else model._last_lstm_states
            for part, given in zip(jax.tree.leaves(tuple(after)), jax.tree.leaves(tuple(held)), strict=True):
                np.testing.assert_allclose(part, given, rtol=1e-4, atol=1e-6)
        ended += buffer.episode_starts[1:].sum()
        with torch.no_grad():
            last = torch.tensor(model._last_obs), model._last_lstm_states.vf
            last_values = policy.predict_values(*last, torch.tensor(model._last_episode_starts, dtype=torch.float32))
        advantages = buffer.advantages.copy()
        buffer.compute_returns_and_advantage(last_values, model._last_episode_starts)
        np.testing.assert_allclose(advantages, buffer.advantages, rtol=1e-4, atol=1e-4)
    assert ended


@pytest.mark.thorough
@pytest.mark.parametrize(("policy", "kind"), [("MultiInputPolicy", "boxes"), ("CnnPolicy", "image")])
def test_all_policies_are_compiled(policy, kind):
    env = bridge.JaxVecEnv(Counter(observation_kind=kind), 2, seed=0)
    model = make(env, policy=policy, engine="xla", n_steps=8, batch_size=16, n_epochs=1)
    model.learn(32)
    assert model._n_updates == 2


# --- Beside sb3-contrib ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_predict_remembers_by_a_program_too():
    model = make(jax_env(), critic="own, two layers")
    stock = make(jax_env(), sb3_contrib, critic="own, two layers")
    stock.set_parameters(model.get_parameters())
    rng, state, theirs = np.random.default_rng(0), None, None
    for call in range(215):
        observation = np.float32(rng.normal(size=(N_ENVS, 4)))
        starts = rng.random(N_ENVS) < 0.1 if call else None
        action, state = model.predict(observation, state, starts, deterministic=True)
        expected, theirs = stock.predict(observation, theirs, starts, deterministic=True)
        np.testing.assert_array_equal(action, expected)
        for part, other in zip(state, theirs, strict=True):
            assert (part.shape, part.dtype) == (other.shape, other.dtype)
            np.testing.assert_allclose(part, other, rtol=1e-4, atol=1e-6)
    for given in (torch.tensor(observation), jnp.asarray(observation)):
        ours, after = model.predict(given, state, starts, deterministic=True)
        expected, other = stock.predict(observation, state, starts, deterministic=True)
        np.testing.assert_array_equal(np.asarray(ours), expected)
        np.testing.assert_allclose(after[1], other[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("begins", [True, False])
def test_of_one_observation_the_start_may_be_a_bool(begins):
    model = make(jax_env())
    stock = make(jax_env(), sb3_contrib)
    stock.set_parameters(model.get_parameters())
    observation = np.float32([0.1, -0.2, 0.3, -0.4])
    _, before = stock.predict(observation)
    action, state = model.predict(jnp.asarray(observation), before, begins, deterministic=True)
    expected, theirs = stock.predict(observation, before, begins, deterministic=True)
    assert int(action) == int(expected)
    np.testing.assert_allclose(state[0], theirs[0], rtol=1e-4, atol=1e-6)


def test_the_state_of_one_environment_makes_a_batch_its_sequence_as_in_sb3():
    model, stock = make(jax_env()), make(jax_env(), sb3_contrib)
    stock.set_parameters(model.get_parameters())
    _, state = model.predict(np.zeros(4, np.float32))
    observations = np.float32([[0.1, -0.2, 0.3, -0.4], [0.4, 0.3, -0.2, 0.1]])
    action, after = model.predict(torch.tensor(observations), state, [True, False], deterministic=True)
    expected, theirs = stock.predict(observations, state, [True, False], deterministic=True)
    np.testing.assert_array_equal(action.numpy(), expected)
    for part, other in zip(after, theirs, strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_evaluate_remembers_within_episodes():
    model = make(jax_env()).learn(4 * ROLLOUT)
    ours = bridge.evaluate(model, "CartPole-v1", 8, seed=3)
    env = VecMonitor(make_vec_env("CartPole-v1", 8, seed=3))
    theirs, lengths = evaluate_policy(model, env, 8, return_episode_rewards=True)
    # Of episodes that last long, evaluate_policy has others in their place.
    first = ours.lengths <= min(lengths)
    assert first.any()
    assert set(ours.returns[first]) <= set(theirs)
