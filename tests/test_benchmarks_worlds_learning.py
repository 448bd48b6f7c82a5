"""The benchmark of what is learnt in the suites trains, evaluates and goes on where it was."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import worlds_learning
from jaxenvs.learn.distributions import Categorical

TAXI, LAKE = "Taxi-v4", "FrozenLake8x8-v1"


class AlwaysDropOff:
    def apply(self, params, observation):
        return Categorical(jnp.broadcast_to(params, (observation.shape[0], 6))), jnp.zeros(observation.shape[0])

    def to_env(self, action):
        return action


def evaluated(cap):
    task = dataclasses.replace(worlds_learning.TASKS[TAXI], episodes=3, cap=cap)
    training = worlds_learning.make_training(TAXI, task, 1).replace(network=AlwaysDropOff())
    logits = jnp.arange(6.0)
    returns, lengths = worlds_learning.evaluate(training, task, logits, jax.random.key(0))
    return np.asarray(returns) / task.reward_scale, np.asarray(lengths)


def test_an_evaluation_plays_one_episode_in_each_environment():
    """Dropping off nobody costs 10 a step, and the time limit is 200."""
    returns, lengths = evaluated(cap=1000)
    np.testing.assert_allclose(returns, [-2000] * 3, rtol=1e-5)
    assert lengths.tolist() == [200] * 3


def test_an_episode_that_is_cut_off_counts_with_what_it_has_brought():
    returns, lengths = evaluated(cap=50)
    np.testing.assert_allclose(returns, [-500] * 3, rtol=1e-5)
    assert lengths.tolist() == [50] * 3


@pytest.mark.thorough
def test_quick_writes_a_row_and_the_training(tmp_path):
    worlds_learning.main(["--quick", "--tasks", LAKE, "--output", str(tmp_path)])
    content = json.loads((tmp_path / "worlds_learning.json").read_text())
    (row,), (run,) = content["tables"]["worlds_learning"], content["runs"]
    assert (row["env"], row["seeds"], row["steps"]) == (LAKE, 1, "32,768")
    assert run["curve"][-1][0] == run["timesteps"] == 32768
    assert content["bars"] == []


def test_what_has_ended_is_not_trained_again(tmp_path, monkeypatch):
    trained = []

    def train(env_id, seed, quick):
        trained.append((env_id, seed))
        return {"task": env_id, "seed": seed, "timesteps": 1, "curve": []} | dict.fromkeys(FIGURES, float(seed))

    monkeypatch.setattr(worlds_learning, "train", train)
    options = ["--tasks", LAKE, "--output", str(tmp_path), "--records", str(tmp_path / "records.jsonl")]
    worlds_learning.main([*options, "--seeds", "1"])
    worlds_learning.main([*options, "--seeds", "3"])
    assert trained == [(LAKE, 0), (LAKE, 1), (LAKE, 2)]
    content = json.loads((tmp_path / "worlds_learning.json").read_text())
    assert content["tables"]["worlds_learning"][0]["return"] == 1.0


FIGURES = ("mean_return", "standard_error", "capped", "end_of_training", "cpu_seconds")
