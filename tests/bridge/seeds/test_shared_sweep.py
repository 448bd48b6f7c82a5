"""Trainings that differ in numbers, one after the other in one program."""

import contextlib

import jax
import numpy as np
import pytest

from bridge.app.config import TrainingConfig
from bridge.app.runs import make_env, make_model
from bridge.seeds import SeedSweep
from bridge.seeds.model_training import training_of
from bridge.seeds.seed_sweep import structure_of
from bridge.translate.pytorch.modules import read_parameters
from tests.tiers import tiered

STEPS = 96
SETTINGS = {
    "ppo": (
        "CartPole-v1",
        {"learning_rate": 1e-3, "clip_range": 0.2, "n_steps": 16, "batch_size": 16, "n_epochs": 1, "normalize": True},
    ),
    "sac": ("Pendulum-v1", {"learning_starts": 16, "batch_size": 8, "policy_kwargs": {"net_arch": [4]}}),
}
NUMBERS = {
    "ppo": {"learning_rate": 1e-2, "gamma": 0.9, "clip_range": 0.3, "ent_coef": 0.01, "max_grad_norm": 1.0},
    "sac": {"learning_rate": 1e-2, "gamma": 0.9, "tau": 0.05},
}


@contextlib.contextmanager
def compilations():
    """The names of the programs that are compiled in it."""
    names, counting = [], True

    def keep(event, duration, fun_name=None, **_):
        if counting and event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(keep)
    try:
        yield names
    finally:
        counting = False


def models(algorithm, **numbers):
    env_id, settings = SETTINGS[algorithm]
    configs = [TrainingConfig.resolve(algorithm, env_id, None, 2, STEPS, seed, settings | numbers) for seed in range(2)]
    return [make_model(config, make_env(config)) for config in configs]


def sweep(algorithm):
    return SeedSweep(models(algorithm), STEPS, shares_compiled=True)


def trained(sweep, training):
    sweep.begin(training)
    while sweep.iteration < sweep.num_iterations:
        sweep.advance(sweep.num_iterations)
    assert sweep.finish() == [True, True]
    return [read_parameters(model.policy.parameters()) for model in sweep.models]


@pytest.fixture(scope="module")
def of_ppo():
    """A sweep that has been used."""
    shared = sweep("ppo")
    trained(shared, training_of(models("ppo")[0], STEPS))
    return shared


@pytest.mark.parametrize("algorithm", tiered(SETTINGS, "ppo"))
def test_the_second_training_compiles_nothing_and_learns_what_a_program_of_its_own_does(algorithm, request):
    shared = request.getfixturevalue("of_ppo") if algorithm == "ppo" else sweep(algorithm)
    first = trained(shared, training_of(models(algorithm)[0], STEPS))
    others = models(algorithm, **NUMBERS[algorithm])
    with compilations() as compiled:
        second = trained(shared, training_of(others[0], STEPS))
    assert compiled == []
    alone = SeedSweep(others, STEPS)
    while not alone.is_done:
        alone.advance()
    alone.finish()
    for ours, theirs, before in zip(second, alone.models, first):
        np.testing.assert_allclose(ours, read_parameters(theirs.policy.parameters()), atol=1e-3)
        assert np.abs(ours - before).max() > 1e-2


def test_what_is_compiled_into_a_program_makes_another_structure(of_ppo):
    plain, other = (training_of(models("ppo", **changes)[0], STEPS) for changes in ({"gamma": 0.9}, {"batch_size": 8}))
    assert structure_of(plain) == structure_of(training_of(models("ppo")[0], STEPS))
    with pytest.raises(ValueError, match="must have the same structure as the first one"):
        of_ppo.begin(other)


def test_weights_that_became_nan_are_told_and_leave_the_model_as_it_was(of_ppo):
    before = trained(of_ppo, training_of(models("ppo")[0], STEPS))
    of_ppo.begin(training_of(models("ppo", learning_rate=1e38)[0], STEPS))
    while of_ppo.iteration < of_ppo.num_iterations:
        of_ppo.advance(of_ppo.num_iterations)
    assert of_ppo.finish(skips_nan=True) == [False, False]
    for model, weights in zip(of_ppo.models, before):
        np.testing.assert_array_equal(read_parameters(model.policy.parameters()), weights)
