"""The tasks of the learning benchmark: its environments, and the targets of its tables."""

import jax
import numpy as np
import pytest

from benchmarks import common, learning, learning_tasks
from benchmarks.learning_tasks import CONTRIB, OURS, STOCK, TABLES
from tests.tiers import tiered


def test_velocities_are_hidden_and_success_is_counted():
    env = learning_tasks.cartpole_without_velocities()
    _, timestep = env.step(env.reset(jax.random.key(0))[0], 1)
    np.testing.assert_array_equal(np.asarray(timestep.observation) != 0, [True, False, True, False])
    run = learning.Run("BitFlipping of 15 bits", OURS, 0, 1, "sac")
    model, lanes = learning.make_model(run), learning.make_evaluation(run, 1000)
    assert -15 <= learning.mean_return(model, lanes, 20) <= 0
    assert learning.mean_return(model, lanes, 20, success_above=-16) == 1
    assert learning.mean_return(model, lanes, 20, success_above=0) == 0


@pytest.mark.parametrize("name", tiered(CONTRIB, "recurrent_ppo CartPole-v1 without velocities"))
def test_both_sides_of_a_task_have_the_same_settings(name):
    algorithm, _, env_id = name.partition(" ")
    stock, ours = (learning.make_model(learning.Run(env_id, side, 0, 1, algorithm)) for side in (STOCK, OURS))
    assert str(stock.policy) == str(ours.policy)
    for attribute in ("gamma", "batch_size", "n_envs", "learning_rate", "ent_coef", "buffer_size", "train_freq"):
        if attribute != "learning_rate" or not callable(stock.learning_rate):
            assert getattr(stock, attribute, None) == getattr(ours, attribute, None)
    assert (stock.get_vec_normalize_env() is None) == (ours.get_vec_normalize_env() is None)


@pytest.mark.parametrize(
    ("name", "ours", "stock", "met"),
    [
        ("ppo CartPole-v1 without velocities", [449.0], None, True),
        ("ppo CartPole-v1 without velocities", [450.0], None, False),
        ("maskable_ppo Taxi-v4", [7.4, 7.4, 9], [0.0], False),
        ("qrdqn Acrobot-v1", [-90.0, -80.0, -70.0], [-79.0, -81.0], True),
        ("qrdqn Acrobot-v1", [-90.0, -82.0, -70.0], [-79.0, -81.0], False),
    ],
)
def test_bars_are_the_tasks_or_stocks_worst_seed(name, ours, stock, met):
    report = common.Report("learning_contrib", {}, [])
    learning.hold(report, TABLES["learning_contrib"], name, ours, stock)
    assert [bar["met"] for bar in report.content["bars"]] == [met]


def test_without_stocks_seeds_its_bar_is_left_out():
    report = common.Report("learning_contrib", {}, [])
    learning.hold(report, TABLES["learning_contrib"], "qrdqn Acrobot-v1", [-80.0], None)
    assert not report.content["bars"]
