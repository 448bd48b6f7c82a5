"""learn.RecurrentPPO: trainings in pure JAX of networks that remember."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs import learn
from jaxenvs.learn.networks import lstm
from jaxenvs.learn.on_policy.recurrent_ppo import in_rows
from tests.environments import Counter


def network(env, **settings):
    return learn.RecurrentActorCritic.of(env, actor=(8,), critic=(8,), lstm_hidden_size=4, **settings)


@pytest.mark.thorough
@pytest.mark.parametrize("critic", lstm.CRITICS)
def test_sequences_give_what_their_steps_give_one_by_one(critic):
    env, rng, rows = Counter(), np.random.default_rng(0), 40
    net = network(env, n_lstm_layers=2, critic_lstm=critic)
    params = net.init(jax.random.key(0))
    observations = jnp.asarray(rng.normal(size=(rows, 2)), jnp.float32)
    starts = jnp.asarray(rng.random(rows) < 0.2)
    memory, memories, logits, values = net.no_memory(params, 1), [], [], []
    memory = jax.tree.map(lambda leaf: leaf + 0.3, memory)
    for row in range(rows):
        seen = learn.Recalled(observations[None, row], memory, starts[None, row])
        memories.append(memory)
        distribution, value = net.apply(params, seen)
        logits.append(distribution.logits[0])
        values.append(value[0])
        memory = net.recall(params, seen)
    before = jax.tree.map(lambda *parts: jnp.concatenate(parts), *memories)
    # Some begin in the middle of an episode, as those of a minibatch.
    begins = starts | (jnp.arange(rows) % 15 == 0)
    distribution, value = net.apply(params, learn.Recalled(observations, before, starts, begins))
    np.testing.assert_allclose(distribution.logits, jnp.stack(logits), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value, jnp.stack(values), rtol=1e-4, atol=1e-6)


def test_an_epoch_goes_round_the_steps_of_one_environment_after_the_other():
    order = np.asarray(in_rows(jnp.array([0, 4]), n_steps=3, num_envs=2))
    assert order.tolist() == [[0, 2, 4, 1, 3, 5], [3, 5, 0, 2, 4, 1]]


def test_a_critic_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="critic_lstm must be one of 'own', 'shared', 'none', got 'both'"):
        network(Counter(), critic_lstm="both")
