"""The search spaces of hyper-parameters, and the meaning of a trial's params."""

import optuna
import pytest

from bridge.algorithms.specs import ALGORITHMS
from bridge.app.config import TrainingConfig
from bridge.app.tuning.spaces import SPACES, distributions, settings
from bridge.app.tuning.trials import Objective
from jaxenvs.cli.user_errors import UserError


def config(algorithm="ppo", num_envs=8, total_timesteps=30_000, **hyperparameters):
    env_id = "Pendulum-v1" if ALGORITHMS[algorithm].actions == "Box" else "CartPole-v1"
    return TrainingConfig.resolve(algorithm, env_id, None, num_envs, total_timesteps, 0, hyperparameters)


def draws(space, number):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [study.ask(space).params for _ in range(number)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_whatever_is_drawn_for_an_algorithm_is_a_config(algorithm):
    env_id = config(algorithm).env_id
    objective = Objective(algorithm, env_id, None, None, 1, 1, num_envs=8, total_timesteps=30_000)
    configs = [objective.config_of(params) for params in draws(distributions(SPACES[algorithm]), 40)]
    assert len({str(each.hyperparameters) for each in configs}) == 40


def test_a_batch_is_never_larger_than_a_rollout_and_always_divides_it():
    base = config(num_envs=3)
    for params in draws(distributions(SPACES["ppo"]), 40):
        found = settings(params, base)
        assert 3 * found["n_steps"] % found["batch_size"] == 0
    assert settings({"n_steps": 32, "batch_size": 512}, base)["batch_size"] == 96


def test_what_is_longer_than_the_training_is_cut():
    assert settings({"n_steps": 2048}, config(total_timesteps=2048, n_steps=8))["n_steps"] == 256
    found = settings({"learning_starts": 1000, "train_freq": 64}, config("dqn", total_timesteps=500, learning_starts=0))
    assert (found["learning_starts"], found["train_freq"]) == (499, 62)


def test_names_of_a_space_mean_hyperparameters():
    found = settings(
        {"one_minus_gamma": 0.25, "policy_kwargs.net_arch": "[64, 64]", "train_freq": 8, "subsample_steps": 4},
        config("dqn", policy_kwargs={"activation_fn": "Tanh"}),
    )
    assert found["gamma"] == 0.75
    assert found["policy_kwargs"] == {"activation_fn": "Tanh", "net_arch": [64, 64]}
    assert (found["train_freq"], found["gradient_steps"]) == (8, 2)


def test_a_space_of_ones_own_has_choices_ranges_and_distributions_of_optuna():
    own = {
        "n_epochs": [1, 2],
        "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "n_steps": {"low": 16, "high": 64, "step": 16},
        "gamma": optuna.distributions.FloatDistribution(0.9, 0.99),
    }
    space = distributions(own)
    assert space["learning_rate"] == optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)
    assert space["n_steps"] == optuna.distributions.IntDistribution(16, 64, step=16)
    assert space["gamma"] is own["gamma"]


@pytest.mark.parametrize("among", [3, {"low": 1}, {"low": 2, "high": 1}, {"low": 1, "high": 2, "lag": True}, []])
def test_what_is_neither_choices_nor_a_range_is_refused(among):
    with pytest.raises(UserError, match=r"gamma in a space must be choices or a range, such as .*, got"):
        distributions({"gamma": among})
