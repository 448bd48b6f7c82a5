"""Iterations in one compiled function have the same results as separate rollouts and updates."""

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback, EveryNTimesteps
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize

import bridge
from bridge.engine.callbacks.callback_schedule import SECONDS, Pace
from bridge.engine.on_policy import compiled_training
from tests.bridge.algorithms.cases import assert_equal, state_of_rollouts
from tests.bridge.small_models import N_ENVS, N_STEPS, ROLLOUT, logged, make, make_env


class OneByOne:
    """Iterations one by one, each a rollout and an update: a subclass may override anything."""

    def collect_rollouts(self, *args, **kwargs):
        return super().collect_rollouts(*args, **kwargs)


class One(OneByOne, bridge.PPO):
    pass


class OneA2C(OneByOne, bridge.A2C):
    pass


def pair(**settings):
    return make(**settings), make(algorithm=One, **settings)


def counts_of(model, monkeypatch):
    """Return how many iterations each call of a compiled function runs while a model trains."""
    counts, run = [], compiled_training.run_iterations

    def counting(algorithm, plan, settings):
        if algorithm is model:
            counts.append(len(settings))
        return run(algorithm, plan, settings)

    monkeypatch.setattr(compiled_training, "run_iterations", counting)
    return counts


def test_iterations_together_are_those_one_by_one_bit_for_bit(monkeypatch):
    together, one_by_one = pair(learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: left)
    counts = counts_of(together, monkeypatch)
    for model in (together, one_by_one):
        model.learn(9 * ROLLOUT)
    assert sum(counts) == 9
    assert max(counts) > 1
    assert_equal(state_of_rollouts(together), state_of_rollouts(one_by_one))


@pytest.mark.thorough
def test_a2c_through_wrappers_too(monkeypatch):
    settings = {"n_steps": N_STEPS, "policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"}
    models = [
        cls("MlpPolicy", VecMonitor(VecFrameStack(make_env(), 2)), learning_rate=lambda left: 1e-3 * left, **settings)
        for cls in (bridge.A2C, OneA2C)
    ]
    counts = counts_of(models[0], monkeypatch)
    for model in models:
        model.learn(5 * ROLLOUT)
        model.learn(3 * ROLLOUT, reset_num_timesteps=False)
    assert max(counts) > 1
    assert_equal(*map(state_of_rollouts, models))
    for name in ("episode_returns", "episode_lengths", "episode_count"):
        assert np.array_equal(*(getattr(model.env, name) for model in models)), name


def test_statistics_that_are_summed_up_on_the_host_keep_iterations_apart(monkeypatch):
    model = make(VecNormalize(make_env()))
    counts = counts_of(model, monkeypatch)
    model.learn(3 * ROLLOUT)
    assert counts == []


@pytest.mark.parametrize("log_interval", [1, 3])
def test_logs_are_those_of_iterations_one_by_one(tmp_path, log_interval):
    models = zip(("together", "one"), pair(learning_rate=lambda left: 1e-3 * left))
    rows = [logged(model, tmp_path / name, 7 * ROLLOUT, log_interval=log_interval) for name, model in models]
    assert len(rows[0]) == 7 // log_interval
    assert rows[0] == rows[1]


def test_a_callback_that_acts_at_a_step_sees_the_weights_of_that_step(monkeypatch):
    class Weights(BaseCallback):
        def _on_step(self):
            parameters = torch.nn.utils.parameters_to_vector(self.model.policy.parameters())
            seen.append((self.num_timesteps, parameters.detach().clone()))
            return True

    both = []
    for model in pair():
        seen = []
        counts = counts_of(model, monkeypatch)
        model.learn(12 * ROLLOUT, callback=EveryNTimesteps(5 * ROLLOUT + N_ENVS, Weights()))
        both.append(seen)
        assert (max(counts, default=0) > 1) == (type(model) is bridge.PPO)
    assert [step for step, _ in both[0]] == [step for step, _ in both[1]] == [5 * ROLLOUT + N_ENVS, 10 * ROLLOUT + 8]
    assert all(torch.equal(ours, theirs) for (_, ours), (_, theirs) in zip(*both))


def test_what_becomes_nan_fails_in_its_iteration_as_one_by_one():
    def learning_rate(left):
        return 1e-3 if left > 0.5 else float("nan")

    failed = []
    for model in pair(learning_rate=learning_rate):
        with pytest.raises(ValueError, match="parameters of policy NaN") as error:
            model.learn(8 * ROLLOUT)
        failed.append((str(error.value), model.num_timesteps))
    assert failed[0] == failed[1]
    assert failed[0][1] == 4 * ROLLOUT


def test_a_program_has_room_for_the_steps_that_it_may_run():
    assert compiled_training.iterations_per_call(5, 8) == 100
    assert compiled_training.iterations_per_call(256, 8) == 8
    assert compiled_training.iterations_per_call(256, 1024) == 1


def test_the_pace_grows_while_programs_are_short_and_falls_when_they_are_long(monkeypatch):
    now = 0.0
    monkeypatch.setattr("bridge.engine.callbacks.callback_schedule.time.perf_counter", lambda: now)
    pace, counts = Pace(), []
    for _ in range(8):
        count = pace.next(1000)
        counts.append(count)
        with pace.running(count):
            now += SECONDS / 10 * count
    assert counts == [1, 2, 4, 8, 8, 8, 8, 8]
    with pace.running(8):
        now += 2 * SECONDS
    assert pace.next(1000) == 4
    assert pace.next(3) == 3
