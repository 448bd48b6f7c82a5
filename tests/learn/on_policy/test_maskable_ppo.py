"""learn.MaskablePPO: trainings in pure JAX in which illegal actions are never taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs import learn
from tests.masked_environments import ACTIONS, Locks


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ACTIONS)
def test_a_policy_gives_illegal_actions_no_chance(kind):
    network = learn.ActorCritic.of(Locks(kind=kind), actor=(8,), critic=(8,))
    params = network.init(jax.random.key(0))
    mask = jnp.asarray(
        {"discrete": [0, 1, 0, 1], "multi_discrete": [1, 0, 0, 1, 1], "multi_binary": [0, 1, 1, 0, 1, 1]}[kind]
    )
    seen = learn.Masked(jnp.ones((1, 2)), mask[None])
    distribution, value = network.apply(params, seen)
    assert value == network.apply(params, seen.observation)[1]
    drawn = np.array(jax.vmap(distribution.sample)(distribution.noise(jax.random.key(1), 200)))[:, 0]
    expected = {
        "discrete": {(1,), (3,)},
        "multi_discrete": {(0, 1), (0, 2)},
        "multi_binary": {(1, 0, 0), (1, 0, 1)},
    }[kind]
    assert {tuple(np.ravel(each).tolist()) for each in drawn} == expected
    probabilities = [
        jnp.exp(distribution.log_prob(jnp.asarray([each if len(each) > 1 else each[0]]))) for each in expected
    ]
    np.testing.assert_allclose(sum(probabilities), 1, rtol=1e-6)
    entropy = -sum(p * jnp.log(p) for p in probabilities)
    np.testing.assert_allclose(distribution.entropy(), entropy, rtol=1e-5)
