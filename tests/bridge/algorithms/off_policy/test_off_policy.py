"""bridge.DQN, SAC and TD3 on JAX environments: steps, store and updates as one program, and what others see of it."""

import signal
import sys

import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import (
    BaseCallback,
)
from stable_baselines3.common.noise import NormalActionNoise

import bridge
from bridge.algorithms.common import off_policy_algorithm
from bridge.engine.callbacks.callback_schedule import Pace, ScheduledCallback
from bridge.engine.off_policy import compiled_training
from bridge.replay import device_store
from tests.bridge.algorithms.cases import N_ENVS, assert_equal, make, make_env, state_of


def is_compiled(model):
    return model.plan.wrapped_env is not None and not model.plan.reasons


# --- Programs -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3", "QRDQN", "TQC", "CrossQ"])
def test_how_a_training_is_cut_into_programs_changes_no_bit(name, monkeypatch):
    states = []
    for next_ in (lambda self, most: 1, lambda self, most: min(7, most), lambda self, most: most):
        monkeypatch.setattr(Pace, "next", next_)
        model = make(name, learning_rate=lambda left: 1e-2 * left)
        assert is_compiled(model)
        states.append(state_of(model.learn(96)))
    assert states[0]["_n_updates"] > 10
    assert_equal(states[1], states[0])
    assert_equal(states[2], states[0])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_learning_twice_is_learning_on(name):
    # Not TD3's noise of these tests, which each `learn` starts anew.
    noise = {"action_noise": NormalActionNoise(np.zeros(2), np.full(2, 0.3))} if name == "TD3" else {}
    at_once, twice = (make(name, learning_rate=1e-2, **noise) for _ in range(2))
    if name == "DQN":  # the share of random actions depends on the progress, which is another
        for model in (at_once, twice):
            model.exploration_schedule = lambda left: 0.3
    at_once.learn(96)
    assert is_compiled(at_once)
    twice.learn(48).learn(48, reset_num_timesteps=False)
    assert_equal(state_of(twice), state_of(at_once))


def test_a_training_compiles_its_program_once():
    model = make().learn(48)
    compiled = compiled_training.compiled_function(None)._cache_size()
    model.learn(48)
    model.replay_buffer.size()  # for which it comes back from the program
    model.learn(48)
    make().learn(48)
    assert compiled_training.compiled_function(None)._cache_size() == compiled > 0
    assert not model.plan._compiled  # it makes the update after the last step too


# --- The store ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(("length", "limit"), [(3, 7), (9, 4), (5, 5)], ids=["terminated", "truncated", "both"])
@pytest.mark.parametrize("name", ["DQN", "TD3"])
def test_the_store_holds_the_transitions_of_the_environments(name, length, limit):
    model = make(name, make_env(name, length=length, limit=limit)).learn(60)
    assert is_compiled(model)
    buffer, env = model.replay_buffer, make_env(name, length=length, limit=limit)
    observation = env.reset()
    for row in range(buffer.size()):
        action = buffer.actions[row]
        to_env = action[:, 0] if name == "DQN" else model.policy.unscale_action(action)
        following, reward, done, infos = env.step(to_env)
        final = np.array([info.get("terminal_observation", obs) for info, obs in zip(infos, following)])
        np.testing.assert_array_equal(buffer.observations[row], observation)
        np.testing.assert_array_equal(buffer.next_observations[row], final)
        np.testing.assert_allclose(buffer.rewards[row], reward, rtol=1e-6)
        np.testing.assert_array_equal(buffer.dones[row], done)
        timeout = [info.get("TimeLimit.truncated", False) for info in infos]
        np.testing.assert_array_equal(buffer.timeouts[row], timeout)
        observation = following
    assert buffer.dones.sum() > 5
    np.testing.assert_array_equal(model._last_obs, observation)


def test_no_transition_leads_from_before_a_reset_to_after_it():
    model = make().learn(24)
    model._last_obs = model.env.reset()
    model.learn(24, reset_num_timesteps=False)
    model.learn(24)
    buffer = model.replay_buffer
    before, after = (getattr(buffer, name)[: buffer.size(), :, 0] for name in ("observations", "next_observations"))
    np.testing.assert_array_equal(after, before + 1)
    assert buffer.size() == 36


@pytest.mark.parametrize("length", [5, 100])
def test_the_store_holds_as_many_transitions_as_it_was_made_for(length):
    # Of so short episodes, more end than a store has room for at first.
    model = make(env=make_env(length=length, limit=100)).learn(480)
    buffer = model.replay_buffer
    assert (buffer.size(), buffer.pos, buffer.full) == (100, 240 % 100, True)
    np.testing.assert_array_equal(buffer.next_observations[..., 0], buffer.observations[..., 0] + 1)


# --- Arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough(but=["6-SAC", "6-TD3"])
@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
@pytest.mark.parametrize("total", [6, 8, 50])
def test_updates_and_episodes_are_as_many_as_sb3s(name, total):
    ours, stock = make(name), make(name, package=stable_baselines3)
    for model in (ours, stock):
        model.learn(total)
    for counter in ("num_timesteps", "_n_updates", "_episode_num"):
        assert getattr(ours, counter) == getattr(stock, counter), counter
    if name == "DQN":
        assert ours._n_calls == stock._n_calls
        assert ours.exploration_rate == stock.exploration_rate


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("DQN", {}),
        ("DQN", {"target_update_interval": 1}),
        ("DQN", {"target_update_interval": 5, "tau": 1.0}),
        ("SAC", {"tau": 0.1}),
        ("SAC", {"tau": 0.1, "target_update_interval": 4}),
        ("TD3", {"tau": 0.1}),
    ],
)
def test_targets_follow_as_often_as_in_sb3(name, settings):
    ours, stock = (
        make(name, package=package, learning_rate=0.0, **settings) for package in (bridge, stable_baselines3)
    )
    for model in (ours, stock):
        targets = [each for part, each in model.policy.state_dict().items() if "target" in part]
        with torch.no_grad():
            for target in targets:
                target.zero_()
        model.learn(50)
    stock.policy.load_state_dict(
        {
            part: each if "target" in part else ours.policy.state_dict()[part]
            for part, each in stock.policy.state_dict().items()
        }
    )
    for part, each in stock.policy.state_dict().items():
        np.testing.assert_allclose(ours.policy.state_dict()[part], each, rtol=1e-4, atol=1e-6, err_msg=part)


@pytest.mark.thorough
def test_actions_are_random_until_learning_starts_and_those_of_the_policy_after():
    model = make("TD3", action_noise=None, gradient_steps=0)
    with torch.no_grad():
        model.actor.mu[-2].weight.zero_()
        model.actor.mu[-2].bias.fill_(0.5)
    model.learn(20)
    actions = model.replay_buffer.actions[:10]
    assert (np.abs(actions[:3] - np.tanh(0.5)) > 1e-3).all()
    np.testing.assert_allclose(actions[3:], np.tanh(0.5), rtol=1e-5)


def test_where_episodes_begin_stays_as_sb3s_loop_leaves_it():
    assert make().learn(60)._last_episode_starts.all()


def test_the_share_of_random_actions_follows_its_schedule():
    model = make(learning_rate=0.0, exploration_fraction=0.5, exploration_initial_eps=1.0, exploration_final_eps=0.0)
    with torch.no_grad():
        model.policy.q_net.q_net[-1].weight.zero_()
        model.policy.q_net.q_net[-1].bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    model.learn(192)
    actions = model.replay_buffer.actions[:96, :, 0]
    assert set(actions[:10].ravel()) == {0, 1, 2}
    assert (actions[:24] != 2).mean() > (actions[24:48] != 2).mean() > 0
    assert (actions[49:] == 2).all()


# --- Failures -------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_parameters_that_become_nan_are_an_error_and_those_from_before_are_kept():
    model = make().learn(24)
    before = state_of(model)
    model.learning_rate, model.lr_schedule = 1e38, lambda _: 1e38
    with pytest.raises(ValueError, match=r"The update made \d+ of \d+ parameters of q_net NaN.*were kept"):
        model.learn(96, reset_num_timesteps=False)
    after = state_of(model)
    assert_equal(
        {each: after[each] for each in model.policy.state_dict()},
        {each: before[each] for each in model.policy.state_dict()},
    )
    model.learning_rate, model.lr_schedule = 1e-3, lambda _: 1e-3
    updates = model._n_updates
    model.learn(24, reset_num_timesteps=False)
    assert model._n_updates > updates
    assert np.isfinite(state_of(model)["q_net.q_net.0.weight"]).all()


def test_a_run_whose_parameters_become_nan_changes_nothing_but_what_is_stored(monkeypatch):
    def state_before():
        env = model.get_env()
        arrays = env.get_state() | {"obs": model._last_obs, "key": model.key}
        counts = model.num_timesteps, model._n_updates
        return {name: np.array(array) for name, array in arrays.items()}, counts

    def run_steps(*args, **kwargs):
        before.append((*state_before(), model.replay_buffer.size()))
        return compiled_training.run_steps(*args, **kwargs)

    model, before = make().learn(24), []
    monkeypatch.setattr("bridge.algorithms.common.off_policy_algorithm.run_steps", run_steps)
    model.learning_rate, model.lr_schedule = 1e38, lambda _: 1e38
    with pytest.raises(
        ValueError, match=r"NaN.*The environments and all counters were kept .* but the replay buffer also holds"
    ):
        model.learn(96, reset_num_timesteps=False)
    arrays, counts, stored = before[-1]
    after, counts_after = state_before()
    assert_equal(after, arrays)
    assert counts_after == counts
    assert model.replay_buffer.size() > stored


def test_parameters_that_become_nan_after_the_last_step_are_named_alone():
    with pytest.raises(ValueError, match=r"parameters of q_net NaN, .* are finite.$"):
        make(learning_rate=lambda left: 1e38 if left == 0 else 0.0).learn(96)


def test_after_ctrl_c_in_a_program_nothing_is_lost_and_training_goes_on(monkeypatch):
    whole, broken = make(), make()
    for model in (whole, broken):
        model.exploration_schedule = lambda left: 0.3
    whole.learn(96)
    function, calls = compiled_training.compiled_function(None), []

    def interrupted(*arguments):
        trained = function(*arguments)
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return trained

    monkeypatch.setattr(compiled_training, "compiled_function", lambda mesh: interrupted)
    monkeypatch.setattr(Pace, "next", lambda self, most: min(most, 6))  # steps a program, of 24
    with pytest.raises(KeyboardInterrupt):
        broken.learn(96)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    steps = broken.num_timesteps
    assert 0 < steps < 96
    assert broken.replay_buffer.size() * N_ENVS == steps
    broken.learn(96 - steps, reset_num_timesteps=False)
    assert_equal(state_of(broken), state_of(whole))


class Ends(ScheduledCallback):
    """Keeps where episodes ended, and counts the steps in which it was called."""

    def __init__(self):
        super().__init__()
        self.calls, self.ends = 0, []

    def _on_step(self):
        self.calls += 1
        for index in np.flatnonzero(self.locals["dones"]):
            self.ends.append((self.num_timesteps, index, self.locals["infos"][index]["episode"]["l"]))
        return True


@pytest.mark.thorough
def test_a_callback_that_wants_no_more_than_ends_leaves_programs_long(monkeypatch):
    class Each(Ends):
        def steps_until_needed(self, num_timesteps, num_envs):
            return 0

    quiet, each, counts = Ends(), Each(), []
    run = off_policy_algorithm.run_steps
    monkeypatch.setattr(
        off_policy_algorithm, "run_steps", lambda *args, **kwargs: counts.append(args[2]) or run(*args, **kwargs)
    )
    make().learn(96, quiet)
    assert max(counts) > make().train_freq.frequency
    make().learn(96, each)
    assert quiet.calls == each.calls
    assert quiet.ends == each.ends
    assert len(quiet.ends) > 0


@pytest.mark.thorough
def test_the_update_that_is_due_is_not_lost_where_a_program_gives_way_to_the_host():
    model, stock_like = make(), make()
    stock_like.learn(96)

    class StepAside(BaseCallback):
        def _on_step(self):
            if self.num_timesteps == 48:
                self.model.train = self.model.train  # a method put into the model: programs step aside
            return True

    model.learn(96, StepAside())
    assert model._n_updates == stock_like._n_updates


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["acting compiled", "SB3's code"])
def test_the_host_takes_the_rest_of_an_iteration_that_a_program_has_begun(mode):
    class StepAside(ScheduledCallback):
        """Puts methods into the model in the middle of an iteration of 4 * N_ENVS steps."""

        def steps_until_needed(self, num_timesteps, num_envs):
            return (20 - num_timesteps) // num_envs - 1 if num_timesteps < 20 else sys.maxsize

        def _on_step(self):
            if self.num_timesteps == 20:
                model.train = lambda *_, **__: updates.append(model.num_timesteps)
                if mode == "SB3's code":
                    model.policy.predict = model.policy.predict
            return True

    model, updates = make(), []
    model.learn(40, StepAside())
    assert f"collecting: {mode}" in str(model.plan)
    assert updates == [24, 32, 40]


@pytest.mark.thorough  # two programs of a large store
def test_a_large_store_has_no_more_rows_in_a_program_than_the_training_fills(monkeypatch):
    whole, parts = (make(env=make_env(length=100, limit=100), buffer_size=4000) for _ in range(2))
    whole.learn(96).learn(480, reset_num_timesteps=False)
    monkeypatch.setattr(device_store, "SMALL_STORE", 0)
    rows, lend = [], device_store.to_device
    monkeypatch.setattr(device_store, "to_device", lambda *args: rows.append(lend(*args)) or rows[-1])
    parts.learn(96)
    parts.learn(480, reset_num_timesteps=False)
    assert [each.capacity for each in rows] == sorted({each.capacity for each in rows})
    assert rows[-1].capacity < parts.replay_buffer.buffer_size
    assert_equal(state_of(parts), state_of(whole))
    assert parts.replay_buffer.observations.shape[0] == parts.replay_buffer.buffer_size
