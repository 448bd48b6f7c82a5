"""Users' callbacks, schedules, loggers and noises see and change the same as with stock Stable-Baselines3."""

import gc
import sys
import weakref

import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise

import bridge
from tests.bridge.algorithms.user_code.own_code_models import LIBRARIES, WHERE, AtStep, make, vector, zero
from tests.bridge.small_models import Noop

# --- Callbacks ------------------------------------------------------------------------------------------------------


class Reset(BaseCallback):
    """Zeroes critics as a rollout starts, and keeps what they are at each step."""

    def _init_callback(self):
        self.seen = []

    def _on_rollout_start(self):
        if self.num_timesteps == 20:
            zero(self.model.critic, self.model.critic_target)

    def _on_step(self):
        self.seen.append(vector(self.model.critic).abs().max().item())
        return True


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
def test_what_is_written_as_a_rollout_starts_trains_and_is_seen_in_its_first_step(where):
    callback = Reset()
    make(bridge.SAC, where).learn(24, callback)
    assert callback.seen[19] > 0.1
    assert callback.seen[20] == 0.0
    assert 0 < callback.seen[21] < 0.01


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lib", LIBRARIES)
def test_as_a_rollout_starts_the_update_before_it_has_taken_place(lib, where):
    class Updates(Noop):
        def _init_callback(self):
            self.seen = []

        def _on_rollout_start(self):
            self.seen.append(self.model._n_updates)

    callback = Updates()
    make(lib.SAC, where).learn(12, callback)
    assert callback.seen == [0] * 7 + [1, 2, 3, 4, 5]


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
def test_with_state_dependent_exploration_frozen_layers_stay_and_settings_count(where):
    frozen = []

    def freeze(model):
        model.tau = 1.0
        for parameter in model.actor.latent_pi.parameters():
            parameter.requires_grad_(False)
        frozen.append(vector(model.actor.latent_pi))

    model = make(bridge.SAC, where, use_sde=True)
    model.learn(30, AtStep({20}, freeze))
    assert torch.equal(vector(model.actor.latent_pi), frozen[0])
    assert torch.equal(vector(model.critic), vector(model.critic_target))


class Intrinsic(BaseCallback):
    """Adds to rewards, as published callbacks for intrinsic rewards do, and keeps the observation before each step."""

    def _init_callback(self):
        self.seen = []

    def _on_step(self):
        self.locals["rewards"] += 1000.0
        self.seen.append((self.model._last_obs[:, 0].copy(), np.array(self.locals["new_obs"])[:, 0]))
        return True


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["SAC", "DQN"])
def test_rewards_that_a_callback_adds_to_are_stored(name, where):
    model, callback = make(getattr(bridge, name), where), Intrinsic()
    plain = make(getattr(bridge, name), where)
    model.learn(30, callback)
    plain.learn(30)
    assert (model.replay_buffer.rewards[:30] > 900).all()
    before, after = (np.array(each).ravel() for each in zip(*callback.seen))
    np.testing.assert_array_equal(before, np.arange(len(before)) % 5)
    np.testing.assert_array_equal(after, np.arange(1, len(after) + 1) % 5)


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_rewards_that_a_callback_adds_to_are_learnt_from(name, where):
    settings = {"learning_rate": 0.0, "gamma": 0.5}
    ours, stock = (make(getattr(lib, name), where, **settings) for lib in (bridge, stable_baselines3))
    stock.policy.load_state_dict(ours.policy.state_dict())
    callbacks = Intrinsic(), Intrinsic()
    for model, callback in zip((ours, stock), callbacks):
        model.learn(16, callback)
    np.testing.assert_array_equal(*(np.array(callback.seen) for callback in callbacks))
    assert ours.rollout_buffer.rewards.min() > 900
    buffer = ours.rollout_buffer
    returns = (buffer.advantages + buffer.values).ravel()
    np.testing.assert_allclose(np.asarray(buffer.returns).ravel(), returns, rtol=1e-5)
    assert buffer.returns.ravel()[0] > 1500


# --- Schedules, logs, noises ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
def test_a_schedule_put_in_the_place_of_a_rate_counts_at_every_update(where):
    weights = []
    for replaces in (False, True):
        model = make(bridge.DQN, where, learning_rate=1e-2 if replaces else lambda left: 1e-2 * left, train_freq=1)
        if replaces:
            model.lr_schedule = lambda left: 1e-2 * left
        model.learn(60)
        weights.append(vector(model.q_net))
    assert torch.equal(*weights)


class Decay:
    """A rate that falls each time it is asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self, progress):
        self.calls += 1
        return 1e-3 * 0.99**self.calls


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC"])
def test_a_schedule_with_a_memory_is_asked_as_often_as_by_sb3(name, where):
    calls = []
    for lib in LIBRARIES:
        decay = Decay()
        model = make(getattr(lib, name), where, learning_rate=decay)
        model.learn(48)
        if lib is bridge:
            assert "`self.calls`, sets an attribute" in str(model.plan)
        calls.append(decay.calls)
    assert calls[0] == calls[1]


def schedule_of(model):
    return lambda left: left / (1 + model.num_timesteps)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_schedule_that_reads_what_its_model_counts_is_not_asked_ahead(name):
    weights = []
    for callback in (None, AtStep((), None)):
        model = make(getattr(bridge, name), "JAX")
        model.lr_schedule = schedule_of(model)
        model.learn(48, callback)
        weights.append(vector(model.policy))
    # To rounding: on some processors, the last digit of a network of this size depends on the function that it is in.
    np.testing.assert_allclose(*weights, rtol=1e-5, atol=1e-7)


def test_a_schedule_that_refers_to_its_model_keeps_no_model_alive():
    model = make(bridge.PPO, "JAX")
    model.lr_schedule = schedule_of(model)
    assert "lr_schedule" in str(model.plan)
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None


RATE = 0.1


def scaled(left):
    return RATE * left


def test_a_schedule_is_looked_at_again_after_a_global_was_replaced(monkeypatch):
    from bridge.engine.user_code.overrides import why_impure

    assert not why_impure(scaled)
    monkeypatch.setattr(sys.modules[__name__], "RATE", Decay())
    assert why_impure(scaled)
    monkeypatch.undo()
    assert not why_impure(scaled)
    monkeypatch.setattr(scaled, "__defaults__", (Decay(),))
    assert why_impure(scaled)


class Rows(Logger):
    """Keeps rows, and has no formats."""

    def __init__(self):
        super().__init__(None, [])
        self.rows = []

    def dump(self, step=0):
        self.rows.append((step, self.name_to_value.get("train/n_updates")))
        super().dump(step)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_logger_of_ones_own_gets_every_row(name, where):
    rows = []
    for lib in LIBRARIES:
        model = make(getattr(lib, name), where)
        model.set_logger(Rows())
        model.learn(64, log_interval=1)
        rows.append(model.logger.rows)
    assert rows[0] == rows[1]
    assert len(rows[0]) >= 4


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_a_log_after_minus_one_episodes_is_one_after_each(name, capsys):
    make(getattr(bridge, name), "JAX", verbose=1).learn(20, log_interval=-1)
    assert capsys.readouterr().out.count("total_timesteps") == 4


@pytest.mark.thorough
def test_a_subclass_of_a_noise_is_asked_itself():
    class Silent(VectorizedActionNoise):
        def __call__(self):
            return 0 * super().__call__()

    noise = Silent(NormalActionNoise(np.zeros(2), np.ones(2)), 1)
    model = make(bridge.TD3, learning_rate=0.0, action_noise=noise, learning_starts=0)
    model.learn(20)
    actions = model.replay_buffer.actions[:20, 0]
    assert len(np.unique(actions.round(6), axis=0)) == 5  # one for each observation
