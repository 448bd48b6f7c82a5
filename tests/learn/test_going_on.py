"""A training gives the same bits from the same key, however often it stops and goes on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs import learn
from tests.learn.off_policy.test_loop import assert_equal
from tests.transformations import cases

OF_CASES = cases.trainings()
FALLING = {"learning_rate": jnp.linspace(1e-3, 0, 2), "target_kl": None, "n_steps": 32, "batch_size": 64}
TRAININGS = {name: OF_CASES[name] for name in ("PPO", "MaskablePPO", "DQN", "CrossQ", "TD3")} | {
    "PPO, falling": OF_CASES["PPO"].replace(total_timesteps=512, **FALLING),
    "RecurrentPPO": OF_CASES["RecurrentPPO"].replace(normalize=True),
    "SAC": OF_CASES["SAC"].replace(gradient_steps=-1, n_steps=2),
}
init, advance = cases.jit(learn.Training.init), cases.jit(learn.advance, static_argnums=2)


@functools.cache
def trained(name, seed=1):
    """The start of a training, its end, and metrics."""
    start = init(TRAININGS[name], jax.random.key(seed))
    return start, *advance(TRAININGS[name], start, TRAININGS[name].num_iterations)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_stops_and_goes_on_gives_the_same_bits(name):
    training, (start, whole, whole_metrics) = TRAININGS[name], trained(name)
    with jax.debug_nans(name == "PPO, falling"):  # so that it is compiled anew, and must run and change no bit
        half, first = advance(training, start, training.num_iterations // 2)
        end, second = advance(training, half, training.num_iterations // 2)
    assert_equal(whole, end)
    assert_equal(whole_metrics, {name: jnp.concatenate([values, second[name]]) for name, values in first.items()})


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_the_same_key_gives_the_same_bits_and_another_key_others(name):
    first, (_, other, _) = trained(name), trained(name, seed=2)
    assert_equal(first, trained.__wrapped__(name))
    assert not any(map(np.array_equal, *map(jax.tree.leaves, (first[1].learner.params, other.learner.params))))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, training in TRAININGS.items() if training.normalize])
def test_training_with_normalisation_counts_every_observation(name):
    start, end, metrics = trained(name)
    np.testing.assert_allclose(end.normalizer.observation.count, metrics["timesteps"][-1] + 8, rtol=1e-5)
    assert not any(map(np.array_equal, *map(jax.tree.leaves, (start.learner.params, end.learner.params))))
    assert np.isfinite(metrics["loss" if "PPO" in name else "critic_loss"]).all()
