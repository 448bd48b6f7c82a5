"""User code runs through one door: what it reads is true, and what it writes takes effect, as with stock SB3."""

import copy
import signal

import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from tests.bridge.algorithms.user_code.own_code_models import (
    LIBRARIES,
    OFF_POLICY,
    WHERE,
    AtStep,
    HostCounter,
    environments,
    make,
    vector,
    zero,
)

ON_POLICY = ["PPO", "A2C"]


class AtRollouts(BaseCallback):
    """Calls functions with itself as rollouts begin and end, and at steps."""

    def __init__(self, start=None, end=None, step=None):
        super().__init__()
        self.start, self.end, self.step, self.seen = start, end, step, []

    def _on_rollout_start(self):
        if self.start is not None:
            self.start(self)

    def _on_rollout_end(self):
        if self.end is not None:
            self.end(self)

    def _on_step(self):
        return self.step is None or self.step(self) is not False


# --- When weights are synced ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ON_POLICY)
def test_weights_that_are_written_as_later_rollouts_start_are_those_that_act_and_learn(name, where):
    def start(callback):
        if callback.num_timesteps:
            zero(callback.model.policy.value_net)

    def end(callback):
        callback.seen.append(vector(callback.model.policy.value_net).abs().max().item())

    callback = AtRollouts(start, end)
    make(getattr(bridge, name), where, learning_rate=1e-2).learn(64, callback)
    assert callback.seen[0] > 0
    assert callback.seen[1:] == [0.0, 0.0, 0.0]


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
def test_an_actor_that_is_put_anew_as_a_rollout_starts_acts_in_its_first_step(where):
    def start(callback):
        if callback.num_timesteps == 12:
            actor = copy.deepcopy(callback.model.actor)
            with torch.no_grad():
                actor.mu.weight.zero_(), actor.mu.bias.fill_(0.5), actor.log_std.weight.zero_()
                actor.log_std.bias.fill_(-20)
            callback.model.actor = callback.model.policy.actor = actor

    callback = AtRollouts(start, step=lambda callback: callback.seen.append(callback.locals["buffer_actions"][0, 0]))
    make(bridge.SAC, where).learn(13, callback)
    assert callback.seen[12] == pytest.approx(np.tanh(0.5), abs=1e-5)


@pytest.mark.parametrize("where", WHERE)
def test_values_of_steps_before_a_callback_writes_weights_are_those_that_acted(where):
    def step(callback):
        callback.seen.append(callback.locals["values"].item())
        if callback.n_calls % 16 == 9:
            zero(callback.model.policy.value_net)

    callback = AtRollouts(step=step)
    model = make(bridge.PPO, where)
    model.learn(16, callback)
    np.testing.assert_allclose(model.rollout_buffer.values.ravel(), callback.seen, rtol=1e-5)
    assert callback.seen[8] != 0 == callback.seen[9]


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
def test_moments_that_are_written_as_later_rollouts_start_are_those_that_learn(where):
    def start(callback):
        optimizer = callback.model.policy.optimizer
        callback.seen.append({int(entry["step"]) for entry in optimizer.state.values()})
        optimizer.state.clear()

    callback = AtRollouts(start)
    make(bridge.PPO, where, batch_size=8).learn(48, callback)
    assert callback.seen == [set(), {2}, {2}]


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
def test_what_a_callback_does_after_it_has_trained_the_model_itself_is_kept(where):
    seen = []

    def train(model):
        before = vector(model.critic)
        model.train(gradient_steps=1, batch_size=8)
        seen.append((vector(model.critic) - before).abs().max().item())
        zero(model.critic)

    def look(model):
        seen.append(vector(model.critic).abs().max().item())

    callbacks = [AtStep([15], train), AtStep([16], look)]
    make(bridge.SAC, where, learning_rate=1e-4).learn(20, callbacks)
    assert seen[0] > 0
    assert seen[1] < 1e-2


# DDPG and CrossQ count an update before they sample for it.
@pytest.mark.thorough(but=["DDPG-stock", "DDPG-jaxenvs", "SAC-stock", "SAC-jaxenvs"])
@pytest.mark.parametrize("is_stock", [True, False], ids=["stock", "jaxenvs"])
@pytest.mark.parametrize("name", ["DDPG", "SAC", "CrossQ"])
def test_a_replay_buffer_that_looks_at_the_model_sees_each_gradient_step(name, is_stock):
    library = bridge if not is_stock else sb3_contrib if name == "CrossQ" else stable_baselines3
    seen = []

    class Looking(ReplayBuffer):
        def sample(self, batch_size, env=None):
            seen.append((self.model._n_updates, vector(self.model.critic).sum().item()))
            return super().sample(batch_size, env)

    model = make(getattr(library, name), replay_buffer_class=Looking, train_freq=4, gradient_steps=3)
    model.replay_buffer.model = model
    model.learn(16)
    counts, weights = zip(*seen)
    assert counts == ((0, 0, 0, 3, 3, 3, 6, 6, 6) if name == "SAC" else (1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert len(set(weights)) == 9


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["SAC", "PPO"])
def test_a_gradient_step_on_a_part_of_a_network_leaves_the_update_to_sb3(name, where):
    def step(model):
        optimizer = model.actor.optimizer if name == "SAC" else model.policy.optimizer
        layer = model.actor.mu if name == "SAC" else model.policy.action_net
        optimizer.zero_grad()
        layer.weight.sum().backward()
        optimizer.step()

    def counts(model):
        optimizer = model.actor.optimizer if name == "SAC" else model.policy.optimizer
        return {int(entry["step"]) for entry in optimizer.state.values()}

    if name == "SAC":
        model = make(bridge.SAC, where).learn(20, AtStep([14], step))
        assert counts(model) == {14, 15}
    else:
        model = make(bridge.PPO, where).learn(48, AtRollouts(end=lambda callback: step(callback.model)))
        assert counts(model) == {3, 6}
    assert not model.plan.updates
    assert "same number of optimizer steps" in str(model.plan)


@pytest.mark.parametrize("where", WHERE)
def test_a_policy_can_be_copied_after_a_gradient_step_of_the_users(where):
    def step(model):
        _, log_prob = model.actor.action_log_prob(torch.zeros(4, *model.observation_space.shape))
        model.actor.optimizer.zero_grad()
        log_prob.mean().backward()  # its graph stays in the action distribution until the next action
        model.actor.optimizer.step()

    copies = []
    callbacks = [AtStep([14], step), AtStep([15, 16, 17], lambda model: copies.append(copy.deepcopy(model.actor)))]
    make(bridge.SAC, where).learn(17, callbacks)
    assert len(copies) == 3


# --- Environments ---------------------------------------------------------------------------------------------------


class Holding(HostCounter):
    """Has the model, and looks at its critics or sets a bias as episodes begin."""

    model, number = None, 0

    def reset(self, **kwargs):
        if self.model is not None:
            self.number += 1
            self.use()
        return super().reset(**kwargs)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_an_environment_writes_into_its_model_is_learnt_from(library):
    class Setting(Holding):
        def use(self):
            with torch.no_grad():
                self.model.policy.action_net.bias.fill_(float(self.number))

    env = Setting("discrete")
    model = make(library.PPO, env=env, learning_rate=1e-4)
    env.model = model
    model.learn(48)
    assert env.number == 10
    np.testing.assert_allclose(model.policy.action_net.bias.detach().numpy(), env.number, atol=2e-3)


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_environment_sees_the_critics_of_its_model_as_they_are(library):
    seen = []

    class Reading(Holding):
        def use(self):
            seen.append(vector(self.model.critic).sum().item())

    env = Reading()
    model = library.SAC("MlpPolicy", env, **copy.deepcopy(OFF_POLICY))
    env.model = model
    model.learn(32)
    assert len(set(seen)) >= len(seen) - 1  # all but those from before learning starts


# --- What callbacks are shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ON_POLICY)
def test_the_values_at_the_end_of_a_rollout_are_those_of_the_last_observations(name, where):
    def end(callback):
        model = callback.model
        values = model.policy.predict_values(torch.as_tensor(model._last_obs)).detach()
        buffer = model.rollout_buffer
        before = buffer.returns.copy()
        buffer.compute_returns_and_advantage(callback.locals["values"], callback.locals["dones"])
        np.testing.assert_allclose(buffer.returns, before, rtol=1e-5)
        callback.seen.append(torch.equal(callback.locals["values"], values))

    callback = AtRollouts(end=end)
    make(getattr(bridge, name), where).learn(32, callback)
    assert callback.seen == [True, True]


@pytest.mark.parametrize("library", LIBRARIES)
def test_original_rewards_and_observations_are_those_of_each_step(library):
    def step(callback):
        env = callback.training_env
        callback.seen.append((env.get_original_obs()[0, 0], env.get_original_reward()[0]))

    callback = AtRollouts(step=step)
    env = VecNormalize(environments("JAX", "discrete"))
    model = make(library.PPO, env=env)
    model.learn(32, callback)
    observations, rewards = np.array(callback.seen).T
    np.testing.assert_array_equal(observations[:4], [1, 2, 3, 4])
    assert callback.seen[-1] == (env.get_original_obs()[0, 0], env.get_original_reward()[0])
    assert len(observations) == len(rewards) == 32


@pytest.mark.thorough
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_copy_of_a_model_whose_vec_normalize_has_no_environments_can_be_trained_by_hand(library):
    model = make(library.PPO, env=VecNormalize(environments("JAX", "discrete"))).learn(16)
    model.policy.predict(model.observation_space.sample())  # which leaves no graph that PyTorch refuses to copy
    copied = copy.deepcopy(model)
    copied.train()
    assert not np.array_equal(vector(copied.policy), vector(model.policy))


# --- Signals --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [True, False])
def test_a_signal_handler_finds_the_replay_buffer_and_loses_nothing(ends, tmp_path, monkeypatch):
    model = make(bridge.SAC, "JAX").learn(8)
    run = bridge.algorithms.common.off_policy_algorithm.run_steps
    sizes = []

    def handler(*_):
        model.save_replay_buffer(tmp_path / "buffer")
        sizes.append((model.replay_buffer.size(), model.num_timesteps))
        if ends:
            raise SystemExit

    def interrupted(*arguments, **kwargs):
        ran = run(*arguments, **kwargs)
        signal.raise_signal(signal.SIGUSR1)  # where Python would call the handler: before anything is counted
        return ran

    monkeypatch.setattr(bridge.algorithms.common.off_policy_algorithm, "run_steps", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        if ends:
            with pytest.raises(SystemExit):
                model.learn(16, reset_num_timesteps=False)
        else:
            model.learn(16, reset_num_timesteps=False)
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sizes
    assert all(size == steps for size, steps in sizes)
    assert model.replay_buffer.size() == model.num_timesteps
    model.save_replay_buffer(tmp_path / "afterwards")


def test_a_handler_that_user_code_saves_and_sets_again_is_the_one_that_was_there():
    called = []

    class Swapping(BaseCallback):
        def _on_training_start(self):
            self.saved = None

        def _on_step(self):
            if self.saved is None:
                self.saved = signal.signal(signal.SIGUSR1, lambda *_: called.append("another"))
            elif self.num_timesteps == 12:
                signal.signal(signal.SIGUSR1, self.saved)
            signal.raise_signal(signal.SIGUSR1)
            return True

    before = signal.signal(signal.SIGUSR1, lambda *_: called.append("theirs"))
    mine = signal.getsignal(signal.SIGUSR1)
    try:
        make(bridge.SAC, "JAX").learn(16, callback := Swapping())
        assert called == ["another"] * (called.index("theirs")) + ["theirs"] * (16 - called.index("theirs"))
        assert signal.getsignal(signal.SIGUSR1) is mine
        # One that was saved while the model trained can be set after that, too.
        signal.signal(signal.SIGUSR1, callback.saved)
        signal.raise_signal(signal.SIGUSR1)
        assert called[-1] == "theirs"
    finally:
        signal.signal(signal.SIGUSR1, before)
