"""Random draws from a seed."""

import jax
import numpy as np
import pytest

import bridge
from bridge.randomness import key_data


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_model_draws_from_no_key_of_environments_of_the_same_seed(impl):
    """An environment's key is `jax.random.key(seed + i)`: with that, a model would act as the environment was drawn."""
    with jax.default_prng_impl(impl):
        ours, theirs = key_data(7), jax.vmap(jax.random.key)(np.arange(1000, dtype=np.uint32))
        assert not (jax.random.key_data(theirs) == ours).all(axis=1).any()
        assert jax.random.wrap_key_data(ours).shape == ()
        assert not np.array_equal(ours, key_data(8))


def test_a_model_has_the_key_of_its_seed():
    model = bridge.PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=7)
    np.testing.assert_array_equal(model.key, key_data(7))
