"""evaluate: one episode in each environment, counted once."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs import TimeLimit, VectorEnv, evaluate
from tests.core.test_rollout import counting_policy
from tests.environments import Counter


def two(key, observation):
    return jnp.full(observation.shape[0], 2)


def test_each_episode_counts_once_however_long_it_is():
    limits = jnp.array([1, 7, 3, 20])
    venv = VectorEnv(jax.vmap(lambda limit: TimeLimit(Counter(length=10), limit))(limits), 4, env_axis=0)
    result = jax.jit(lambda key: evaluate(venv, two, key))(jax.random.key(0))
    np.testing.assert_array_equal(result.lengths, [1, 7, 3, 10])
    np.testing.assert_array_equal(result.returns, [2, 14, 6, 20])
    np.testing.assert_array_equal(result.terminated, [False, False, False, True])
    np.testing.assert_array_equal(result.truncated, [True, True, True, False])
    assert str(result) == "10.50 ± 6.98 over 4 episodes"


@pytest.mark.thorough
@pytest.mark.parametrize("autoreset", jaxenvs.AutoresetMode)
def test_max_steps_truncates(autoreset):
    result = evaluate(VectorEnv(Counter(length=10), 2, autoreset), two, jax.random.key(0), max_steps=4)
    np.testing.assert_array_equal(result.lengths, [4, 4])
    np.testing.assert_array_equal(result.terminated | ~result.truncated, [False, False])
    exact = evaluate(VectorEnv(Counter(length=4), 2, autoreset), two, jax.random.key(0), max_steps=4)
    np.testing.assert_array_equal(exact.terminated & ~exact.truncated, [True, True])


@pytest.mark.thorough
def test_an_episode_is_that_of_a_rollout():
    venv = jaxenvs.make_vec("CartPole-v1", 8)

    def policy(key, observation):
        return (observation[:, 2] > 0).astype(jnp.int32)

    result = evaluate(venv, policy, jax.random.key(3))
    _, trajectory = jaxenvs.rollout(venv, policy, jax.random.key(3), int(result.lengths.max()))
    first_ends = jnp.argmax(trajectory.timestep.done, axis=0)
    np.testing.assert_array_equal(result.lengths, first_ends + 1)


@pytest.mark.thorough
def test_a_policy_with_a_state():
    venv = VectorEnv(Counter(length=5), 3)
    result = evaluate(venv, counting_policy, jax.random.key(0), max_steps=9, policy_state=jnp.full(3, 100))
    np.testing.assert_array_equal(result.returns, 0 + 1 + 2 + 2 + 2)


def test_it_is_swept_by_vmap_and_compiled_once():
    def mean(key, limit):
        return evaluate(VectorEnv(TimeLimit(Counter(length=10), limit), 4), two, key).mean

    sweep = jax.jit(jax.vmap(chex.assert_max_traces(mean, n=1), in_axes=(None, 0)))
    for limits in (jnp.array([1, 7, 20]), jnp.array([9, 5, 6])):
        np.testing.assert_array_equal(sweep(jax.random.key(0), limits), 2 * jnp.minimum(limits, 10))


def test_an_environment_without_a_limit_is_named():
    with pytest.raises(ValueError, match=r"^Counter has no TimeLimit, so an episode may never end: pass max_steps"):
        evaluate(VectorEnv(Counter(), 3), two, jax.random.key(0))
