"""The arithmetic of Stable-Baselines3: the same weights, rollout and order of minibatches give the same update."""

import jax
import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import configure

import bridge
from bridge.engine.learner import transformations
from bridge.engine.rollout_buffer import read_rollout
from tests.bridge.algorithms.cases import weights
from tests.environments import Counter
from tests.stock import STOCK

N_STEPS, N_ENVS = 24, 4
SIZE = N_STEPS * N_ENVS
SMALL = {"policy_kwargs": {"net_arch": [16, 8]}, "n_steps": N_STEPS, "seed": 0}
ONE_STEP = {"batch_size": SIZE, "n_epochs": 1}
MANY_STEPS = {"batch_size": 8, "n_epochs": 20}  # 240 of them

# What differs from SB3's defaults.
PPO_CASES = {
    "discrete": {},
    "multi_discrete": {"ent_coef": 0.01},
    "multi_binary": {"ent_coef": 0.01},
    "box": {"ent_coef": 0.01},
    "box, state-dependent": {"use_sde": True, "ent_coef": 0.01},
    "discrete, clip_range_vf": {"clip_range_vf": 0.1},
    "box, no normalisation": {"normalize_advantage": False, "max_grad_norm": 0.05},
    "discrete, AdamW": {"optimizer": torch.optim.AdamW},
}
MASKABLE_CASES = {
    "discrete": {},
    "multi_discrete": {"ent_coef": 0.01},
    "multi_binary": {"ent_coef": 0.01, "clip_range_vf": 0.1},
}
CASES = {("PPO", case): settings for case, settings in PPO_CASES.items()}
CASES |= {("MaskablePPO", case): settings for case, settings in MASKABLE_CASES.items()}


@pytest.fixture
def float64(x64, monkeypatch):
    """Both sides in float64. SB3's policies encode observations by `float`."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def make_pair(algorithm, case, **settings):
    """A stock model and ours with the same weights, moments and rollout; `case` begins with the kind of actions."""
    settings = {**SMALL, **settings}
    optimizer = settings.pop("optimizer", None)
    if optimizer is not None:
        settings["policy_kwargs"] = settings["policy_kwargs"] | {"optimizer_class": optimizer}
    env = bridge.JaxVecEnv(Counter(action_kind=case.partition(",")[0]), N_ENVS)
    return alike(*(getattr(package, algorithm)("MlpPolicy", env, **settings) for package in (STOCK, bridge)), fill)


def alike(stock, ours, fill):
    """Give both models the same weights and moments, and the rollout that `fill` makes."""
    ours.set_parameters(stock.get_parameters())
    for model in (stock, ours):
        model.set_logger(configure(None, []))
        if jax.config.jax_enable_x64:
            model.policy.double()
    fill(stock)
    copy_rollout(stock, ours)
    return stock, ours


def copy_rollout(stock, ours):
    for name, value in vars(stock.rollout_buffer).items():
        if isinstance(value, np.ndarray):
            setattr(ours.rollout_buffer, name, value.copy())
    ours.rollout_buffer.full = True


def fill(model):
    """A rollout that the policy might have made some updates ago."""
    rng, buffer = np.random.default_rng(0), model.rollout_buffer
    dtype = next(model.policy.parameters()).detach().numpy().dtype
    observations = rng.normal(size=(SIZE, 2)).astype(np.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        if model.use_sde:
            model.policy.reset_noise(SIZE)
        further = {}
        if hasattr(buffer, "action_masks"):
            masks = rng.random(buffer.action_masks.shape) < 0.5
            masks[..., [0, 3, 5][: 1 + (masks.shape[-1] > 3) + (masks.shape[-1] == 6)]] = True  # one of each choice
            buffer.action_masks = masks.astype(np.float32)
            further = {"action_masks": masks.reshape(SIZE, -1)}
        actions, values, log_probs = model.policy(torch.tensor(observations).to(torch.float64).float(), **further)

    def rows(array):
        return np.asarray(array, dtype).reshape(N_STEPS, N_ENVS)

    buffer.observations = observations.reshape(N_STEPS, N_ENVS, 2).astype(dtype)
    # In the dtype that SB3 casts them to before it learns from them.
    actions = actions.numpy().astype(np.int64 if model.action_space.shape == () else np.float32)
    buffer.actions = actions.reshape(N_STEPS, N_ENVS, buffer.action_dim)
    buffer.values = rows(values.flatten()) + rows(0.3 * rng.normal(size=SIZE))
    buffer.log_probs = rows(log_probs) + rows(0.2 * rng.normal(size=SIZE))
    buffer.advantages, buffer.rewards = rows(rng.normal(size=SIZE)), rows(rng.normal(size=SIZE))
    buffer.returns = buffer.advantages + buffer.values
    buffer.full = True


def update_in_order(monkeypatch, orders):
    """Let all epochs of bridge's updates take the rows in these orders."""

    def make_update(network, optimizers, sequential, mesh):
        @jax.jit
        def update(settings, numbers, state, rollout, key):
            of_each = transformations(optimizers, numbers)
            state, metrics = settings.update(network, of_each, state, rollout, None, permutations=orders)
            metrics.pop("explained_variance")
            return state, key, metrics

        return update

    monkeypatch.setattr("bridge.engine.update.compiled_update", make_update)


@pytest.fixture
def same_order(monkeypatch):
    """Return a function that sets, for a number of epochs, the order in which both libraries take minibatches."""

    def set_order(n_epochs):
        rng = np.random.default_rng(1)
        orders = np.stack([rng.permutation(SIZE) for _ in range(n_epochs)])  # step * N_ENVS + env
        env, step = orders % N_ENVS, orders // N_ENVS
        of_sb3 = iter(env * N_STEPS + step)
        monkeypatch.setattr(np.random, "permutation", lambda _: next(of_sb3))
        update_in_order(monkeypatch, orders)

    return set_order


def moments(model):
    """Return the optimizer's state by name, in a vector for all parameters."""
    states = [*model.policy.optimizer.state_dict()["state"].values()]
    return {name: np.concatenate([np.ravel(state[name]) for state in states]) for name in (states[0] if states else ())}


def assert_same(stock, ours, tolerance):
    """Parameters, moments and logged values, relative to the largest of their kind."""
    for read in (lambda model: {"parameters": weights(model)}, moments):
        for name, a in read(stock).items():
            np.testing.assert_allclose(read(ours)[name], a, rtol=tolerance, atol=tolerance * np.abs(a).max())
    expected, got = (dict(model.logger.name_to_value) for model in (stock, ours))
    got.pop("time/compile_s", None)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        # A divergence is a difference of nearly equal numbers around 1.
        np.testing.assert_allclose(got[name], value, rtol=10 * tolerance, atol=tolerance, err_msg=name)


def train_both(stock, ours):
    for model in (stock, ours):
        model.train()


@pytest.mark.thorough(but=["PPO-discrete"])
@pytest.mark.parametrize(("algorithm", "case"), CASES)
def test_one_step_of_ppo(algorithm, case, same_order):
    stock, ours = make_pair(algorithm, case, **ONE_STEP, **CASES[algorithm, case])
    same_order(1)
    before = weights(stock)
    train_both(stock, ours)
    assert_same(stock, ours, 1e-5)
    moved = weights(stock) - before
    np.testing.assert_allclose(weights(ours) - before, moved, atol=2e-3 * np.abs(moved).max())


# Distributions and optimisers by themselves: tests/bridge/translate.
@pytest.mark.thorough
@pytest.mark.parametrize(("algorithm", "case"), CASES)
def test_hundreds_of_steps_of_ppo_in_float64(algorithm, case, same_order, float64):
    stock, ours = make_pair(algorithm, case, **MANY_STEPS, **CASES[algorithm, case])
    same_order(MANY_STEPS["n_epochs"])
    train_both(stock, ours)
    # PyTorch computes the probability of a Bernoulli action in the dtype of the action, which SB3 makes float32.
    assert_same(stock, ours, 1e-5 if (algorithm, case) == ("PPO", "multi_binary") else 1e-8)


# 96 = 13 * 7 + 5 = 5 * 19 + 1: a last minibatch of 5, and of 1.
@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [7, 19])
def test_a_last_minibatch_that_is_smaller(batch_size, same_order, float64):
    with pytest.warns(UserWarning, match="truncated mini-batch"):
        stock, ours = make_pair("PPO", "discrete", batch_size=batch_size, n_epochs=3)
    same_order(3)
    train_both(stock, ours)
    assert_same(stock, ours, 1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize(("learning_rate", "epochs"), [(0.03, {1, 2, 3}), (1e-6, {5})])
def test_target_kl_ends_the_update_at_the_same_step(learning_rate, epochs, same_order, float64):
    stock, ours = make_pair("PPO", "discrete", batch_size=32, n_epochs=5, target_kl=0.01, learning_rate=learning_rate)
    for model in (stock, ours):
        # As of the policy itself, so that its divergence begins at 0.
        with torch.no_grad():
            observations = torch.tensor(model.rollout_buffer.observations.reshape(SIZE, 2))
            actions = torch.tensor(model.rollout_buffer.actions.reshape(SIZE))
            log_probs = model.policy.evaluate_actions(observations, actions)[1].numpy()
        model.rollout_buffer.log_probs = log_probs.reshape(N_STEPS, N_ENVS)
    same_order(5)
    train_both(stock, ours)
    assert stock._n_updates in epochs
    assert ours._n_updates == stock._n_updates
    assert_same(stock, ours, 1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{}, {"normalize_advantage": True, "ent_coef": 0.01}, {"use_rms_prop": False}])
@pytest.mark.parametrize("case", ["discrete", "box"])
def test_ten_steps_of_a2c(case, settings, float64):
    stock, ours = make_pair("A2C", case, **settings)
    for _ in range(10):
        train_both(stock, ours)
        stock.rollout_buffer.generator_ready = False
        fill(stock)
        ours.rollout_buffer.generator_ready = False
        copy_rollout(stock, ours)
    assert_same(stock, ours, 1e-8)


@pytest.mark.thorough
def test_one_step_of_a2c_in_float32():
    stock, ours = make_pair("A2C", "discrete")
    train_both(stock, ours)
    assert_same(stock, ours, 1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_compiled_rollout_holds_what_the_torch_policy_thinks_of_it(env_id):
    # Ends of both kinds: in 12 steps some poles fall and some do not.
    env = bridge.make_vec_env(env_id, 8, seed=0, env_kwargs={"max_episode_steps": 12})
    model = bridge.PPO("MlpPolicy", env, engine="xla", n_steps=40, n_epochs=1, batch_size=320, seed=0)
    _, callback = model._setup_learn(320)
    assert model.collect_rollouts(model.env, callback, model.rollout_buffer, 40)
    buffer = model.rollout_buffer
    with torch.no_grad():
        observations = torch.tensor(buffer.observations.reshape(320, -1))
        actions = torch.tensor(buffer.actions.reshape(320, -1))
        actions = actions.flatten() if env_id == "CartPole-v1" else actions
        values, log_probs, _ = model.policy.evaluate_actions(observations, actions)
        last_values = model.policy.predict_values(torch.tensor(model._last_obs))
    np.testing.assert_allclose(buffer.values.ravel(), values.flatten(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(buffer.log_probs.ravel(), log_probs, rtol=1e-5, atol=1e-5)
    reference = RolloutBuffer(
        40, buffer.observation_space, buffer.action_space, "cpu", buffer.gae_lambda, buffer.gamma, n_envs=8
    )
    reference.rewards, reference.values, reference.episode_starts = buffer.rewards, buffer.values, buffer.episode_starts
    reference.compute_returns_and_advantage(last_values, model._last_episode_starts)
    scale = np.abs(reference.returns).max()
    np.testing.assert_allclose(buffer.advantages, reference.advantages, rtol=1e-5, atol=1e-5 * scale)
    np.testing.assert_allclose(buffer.returns, reference.returns, rtol=1e-5, atol=1e-5 * scale)


def test_an_update_takes_a_rollout_that_sb3_has_flattened():
    model = make_pair("PPO", "box", **ONE_STEP)[1]
    before = read_rollout(model.rollout_buffer)
    next(iter(model.rollout_buffer.get(SIZE)))  # which puts the steps of an environment one after the other
    after = read_rollout(model.rollout_buffer)
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)
