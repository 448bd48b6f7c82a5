"""The benchmark of returns: the same work on all sides, trainings that are kept, and what the intervals show."""

import json

import jax
import numpy as np
import pytest

from benchmarks import learning, learning_tasks
from benchmarks.learning import Run
from benchmarks.learning_tasks import GYMNASIUM, OURS, STOCK, TASKS

SETTINGS = """
    gamma batch_size n_envs n_steps n_epochs gae_lambda ent_coef vf_coef max_grad_norm use_sde sde_sample_freq
    train_freq gradient_steps learning_starts buffer_size tau
"""


@pytest.mark.thorough
def test_velocities_are_hidden_and_success_is_counted():
    env = learning_tasks.cartpole_without_velocities()
    _, timestep = env.step(env.reset(jax.random.key(0))[0], 1)
    np.testing.assert_array_equal(np.asarray(timestep.observation) != 0, [True, False, True, False])
    run = Run("sac BitFlipping of 15 bits", OURS, 0, 1)
    model, envs = learning.make_model(run), learning.make_evaluation(run)
    assert -15 <= learning.mean_return(model, envs, 20) <= 0
    assert learning.mean_return(model, envs, 20, success_above=-16) == 1
    assert learning.mean_return(model, envs, 20, success_above=0) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", TASKS)
def test_all_sides_of_a_task_have_the_same_settings(name):
    if "native" in TASKS[name].backends.values():
        for package in ("envpool", "mujoco"):
            pytest.importorskip(package)
    stock, *ours = (
        learning.make_model(Run(name, side, 0, 1)) for side in sorted(TASKS[name].backends, key=STOCK.__ne__)
    )
    assert len(ours) == len(TASKS[name].backends) - 1
    for model in ours:
        assert (type(stock).__name__, str(stock.policy)) == (type(model).__name__, str(model.policy))
        for attribute in SETTINGS.split():
            assert getattr(stock, attribute, None) == getattr(model, attribute, None)
        assert [stock.lr_schedule(p) for p in (1, 0.5)] == [model.lr_schedule(p) for p in (1, 0.5)]
        assert repr(getattr(stock, "action_noise", None)) == repr(getattr(model, "action_noise", None))
        assert (stock.get_vec_normalize_env() is None) == (model.get_vec_normalize_env() is None)


def record(seed, mean_return, side=OURS):
    run = {"name": "ppo CartPole-v1", "side": side, "seed": seed, "total_timesteps": 100}
    return run | {"mean_return": mean_return, "cpu_seconds": 2.0, "cpu": "one"}


def test_trainings_that_are_done_are_not_done_again(tmp_path):
    path = tmp_path / "learning.jsonl"
    records = [record(seed, 500.0) for seed in range(2)]
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    runs = [Run("ppo CartPole-v1", OURS, seed, 100) for seed in (1, 0)]
    assert learning.train_all(runs, path, processes=1) == records[::-1]
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-4, 4, "equal"),
        (1, 4, "equal"),
        (1, 9, "better"),
        (-9, -1, "worse"),
        (-4, 9, "not worse"),
        (-9, 4, "undecided"),
        (-9, 9, "undecided"),
    ],
)
def test_a_verdict_says_what_the_interval_shows(low, high, verdict):
    assert learning.verdict(low, high, margin=5) == verdict


def test_the_interval_is_of_the_interquartile_means():
    low, high = learning.interval([1.0, 100.0, 102.0, 900.0], [0.0] * 4)
    assert learning.iqm([1.0, 100.0, 102.0, 900.0]) == 101
    assert low < 101 < high
    assert learning.interval([5.0] * 4, [3.0] * 10) == (2, 2)


@pytest.mark.thorough
def test_seeds_needed_grow_with_the_spread():
    assert learning.seeds_needed([500.0] * 8, margin=24) == 5
    # The standard error of an IQM of n draws is 1.39 standard deviations / sqrt(n) here. Half of the differences of two
    # are equal where 0.67 + 1.96 of their standard errors are the margin.
    for step, at_least in ((1, 8.8), (2, 35.3), (4, 141.2)):
        assert at_least <= learning.seeds_needed(np.arange(10.0) * step, margin=5) <= 2 * at_least
    assert learning.seeds_needed([0.0, 500.0], margin=1) is None


def test_a_row_has_both_sides_and_a_verdict():
    ours, stock = [record(seed, 500.0) for seed in range(5)], [record(0, 480.0, STOCK)]
    row = learning.summarize("ppo CartPole-v1", GYMNASIUM, ours, [])
    assert (row["IQM"], row["stock's_IQM"], row["stock's_CPU_seconds"]) == (500, None, None)
    row = learning.summarize("ppo CartPole-v1", GYMNASIUM, ours, stock)
    assert (row["IQM"], row["stock's_IQM"], row["verdict"], row["difference"]) == (500, 480, None, None)
    assert (row["CPU_seconds"], row["stock's_CPU_seconds"]) == (2, 2)
    elsewhere = [{**each, "cpu": "two", "cpu_seconds": 9.0} for each in ours[:3]]
    row = learning.summarize("ppo CartPole-v1", OURS, [*elsewhere, *ours[3:]], stock * 4)
    assert (row["CPU_seconds"], row["stock's_CPU_seconds"]) == (2, 2)
    of_a_table = {**ours[0], "cpu_seconds": None}
    row = learning.summarize("ppo CartPole-v1", OURS, [of_a_table, *ours], stock)
    assert row["CPU_seconds"] == 2
    row = learning.summarize("ppo CartPole-v1", OURS, [record(seed, 250.0 * seed) for seed in range(5)], stock * 4)
    assert row["verdict"] == "undecided"
    assert row["seeds_needed"] >= 160
    row = learning.summarize("ppo CartPole-v1", OURS, ours, stock * 4)
    assert row["seeds_needed"] is None
    assert (row["seeds"], row["stock's_seeds"], row["verdict"]) == (5, 4, "equal")
    assert row["difference"] == "20 (20 to 20)"
    figures = {5023.4: "5,020", -0.4667: "-0.467", -138.96: "-139", 0.006667: "0.00667"}
    assert {value: learning.short(value) for value in figures} == figures


@pytest.mark.thorough
@pytest.mark.slow
def test_learning_quick_keeps_every_training(tmp_path, monkeypatch):
    monkeypatch.setattr(learning.tempfile, "mkdtemp", lambda: tmp_path)
    learning.main(["--quick", "--output", str(tmp_path)])
    content = json.loads((tmp_path / "learning.json").read_text())
    assert [row["side"] for row in content["tables"]["learning"]] == [OURS, GYMNASIUM]
    assert len((tmp_path / "learning.jsonl").read_text().splitlines()) == 3
    assert all(8 < row["IQM"] <= 500 for row in content["tables"]["learning"])
