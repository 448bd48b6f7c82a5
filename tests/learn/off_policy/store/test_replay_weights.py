"""Updates on transitions that do not count alike: the loss of the critics, and the errors for priorities."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxenvs.learn import DQN, SAC, TD3, DQNPolicy, SACPolicy, TD3Policy, Transitions
from tests.environments import Counter

BATCH, NUM = 4, 2
CASES = {"DQN": (DQN, DQNPolicy), "SAC": (SAC, SACPolicy), "TD3": (TD3, TD3Policy)}
CRITIC = {"DQN": "q_net", "SAC": "critic", "TD3": "critic"}


@functools.cache
def case(name):
    """A compiled update of one batch, one of several, a state, batches (NUM, BATCH, ...) and noise."""
    settings, policy = CASES[name]
    settings = settings(learning_rate=0.1, batch_size=BATCH)
    if name == "DQN":
        settings = settings.replace(max_grad_norm=1e9)
    policy = policy.of(Counter(action_kind="discrete" if name == "DQN" else "box"), net_arch=(8,))
    params = policy.init(jax.random.key(0))
    optimizers = {each: optax.identity() for each in ("q_net", "actor", "critic", "log_ent_coef")}
    rng = np.random.default_rng(0)
    action = rng.integers(3, size=(NUM, BATCH)) if name == "DQN" else rng.uniform(-1, 1, size=(NUM, BATCH, 2))
    before, after = rng.normal(size=(2, NUM, BATCH, 2))
    batches = Transitions(before, action, rng.normal(size=(NUM, BATCH)), after, np.full((NUM, BATCH), 0.9))
    batches = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.float32 if leaf.dtype.kind == "f" else jnp.int32), batches
    )
    noise = settings.noise(policy, params, first(batches), jax.random.key(1), NUM)
    one, several = (
        jax.jit(functools.partial(function, policy, optimizers)) for function in (settings.update, settings.updates)
    )
    return one, several, settings.create(params, optimizers), batches, noise


def first(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def assert_close(tree, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), tree, other)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_critics_learn_from_a_transition_as_much_as_it_counts(name):
    """With all the weight on one of four, as from this one alone."""
    update, _, state, batches, noise = case(name)
    batch, noise = first(batches), first(noise)
    after, metrics = update(state, dataclasses.replace(batch, weight=jnp.array([0, 0, BATCH, 0.0])), noise, 0)
    one, one_noise = jax.tree.map(lambda leaf: leaf[2:3], (batch, noise))
    alone, metrics_alone = update(state, dataclasses.replace(one, weight=jnp.ones(1)), one_noise, 0)
    assert_close(after.params[CRITIC[name]], alone.params[CRITIC[name]])
    loss = "loss" if name == "DQN" else "critic_loss"
    assert_close(metrics[loss], metrics_alone[loss])


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_errors_are_those_before_the_update_of_each_transition(name):
    update, _, state, batches, noise = case(name)
    batch, noise = first(batches), first(noise)
    after, metrics = update(state, dataclasses.replace(batch, weight=jnp.ones(BATCH)), noise, 0)
    errors = metrics.pop("td_errors")
    assert errors.shape == (BATCH,)
    # The squared ones are the loss, which is said of each transition alone.
    for index in range(BATCH):
        one, one_noise = jax.tree.map(lambda leaf, i=index: leaf[i : i + 1], (batch, noise))
        _, alone = update(state, dataclasses.replace(one, weight=jnp.ones(1)), one_noise, 0)
        assert_close(errors[index], alone["td_errors"][0])
        if name == "DQN":
            error = float(errors[index])
            assert_close(alone["loss"], 0.5 * error**2 if error < 1 else error - 0.5)
        else:
            squares = float(alone["critic_loss"]) * (2 if name == "SAC" else 1)  # of both critics, added up
            assert squares / 2 >= error_squared(errors[index]) - 1e-5
    unweighed, plain = update(state, batch, noise, 0)
    assert "td_errors" not in plain
    assert_close(after, unweighed)
    assert_close(metrics, plain)


def error_squared(error):
    """The mean of two squares is at least the square of the mean."""
    return float(error) ** 2


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_updates_one_after_the_other_give_the_errors_of_each(name):
    update, updates, state, batches, noise = case(name)
    batches = dataclasses.replace(
        batches, weight=jnp.asarray(np.random.default_rng(1).random((NUM, BATCH)), jnp.float32)
    )
    together, metrics = updates(state, batches, noise)
    errors = []
    for index in range(NUM):
        batch, drawn = jax.tree.map(lambda leaf, i=index: leaf[i], (batches, noise))
        state, one = update(state, batch, drawn, index)
        errors.append(one["td_errors"])
    assert_close(together, state)
    assert_close(metrics["td_errors"], jnp.stack(errors))
