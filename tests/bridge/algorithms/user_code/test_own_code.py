"""Values that users' code writes outside of `learn` take effect in training, as with stock Stable-Baselines3."""

import copy

import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common import utils
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecMonitor

import bridge
from bridge import JaxVecEnv
from jaxenvs import TimeLimit
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
from tests.environments import Counter

# --- Methods of a subclass ------------------------------------------------------------------------------------------


@pytest.mark.thorough(but=["SAC-Gymnasium", "DQN-JAX"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["SAC", "TD3", "DQN"])
def test_what_a_subclass_does_to_weights_after_an_update_stays(name, where):
    class Clipped(getattr(bridge, name)):
        def train(self, gradient_steps, batch_size=64):
            super().train(gradient_steps, batch_size)
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    parameter.clamp_(-0.01, 0.01)

    model = make(Clipped, where)
    model.learn(20)
    assert model._n_updates >= 4
    assert max(parameter.abs().max() for parameter in model.policy.parameters()) <= np.float32(0.01)
    assert "train" in str(model.plan)


@pytest.mark.parametrize("where", WHERE)
def test_a_target_that_a_subclass_moves_in_every_step_follows(where):
    class Soft(bridge.DQN):
        def _on_step(self):
            super()._on_step()
            utils.polyak_update(self.q_net.parameters(), self.q_net_target.parameters(), 1.0)

    model = make(Soft, where, target_update_interval=10**6, train_freq=1)
    model.learn(30)
    seen = []
    model.learn(10, AtStep({5}, lambda model: seen.append(vector(model.q_net_target))))
    assert not torch.equal(seen[0], vector(model.q_net))
    assert (vector(model.q_net) - vector(model.q_net_target)).abs().max() < 0.01


def test_a_replay_buffer_of_ones_own_may_write_into_what_it_is_given():
    class Writing(ReplayBuffer):
        def add(self, obs, next_obs, action, reward, done, infos):
            super().add(obs, next_obs, action, reward, done, infos)
            next_obs[...] = -1

    model = make(bridge.SAC, replay_buffer_class=Writing).learn(12)
    assert (model.replay_buffer.observations[:12] >= 0).all()


@pytest.mark.parametrize("where", WHERE)
def test_a_predict_of_a_subclass_chooses_what_is_tried(where):
    class Stubborn(bridge.DQN):
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            return np.full(len(observation), 2), state

    model = make(Stubborn, where, learning_starts=0, exploration_fraction=1e-9)
    model.learn(40)
    assert set(model.replay_buffer.actions[:40].ravel()) == {2}


@pytest.mark.parametrize("where", WHERE)
def test_each_optimiser_may_have_a_rate_of_its_own(where):
    class Each(bridge.SAC):
        def _update_learning_rate(self, optimizers):
            for optimizer, rate in zip(optimizers, (0.0, 1e-2, 0.0), strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = rate

    model = make(Each, where)
    before = [vector(model.actor), vector(model.critic), model.log_ent_coef.item()]
    model.learn(20)
    assert torch.equal(vector(model.actor), before[0])
    assert not torch.equal(vector(model.critic), before[1])
    assert model.log_ent_coef.item() == before[2]


@pytest.mark.thorough
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_a_rule_of_ones_own_for_the_learning_rate_counts(name, where):
    class Frozen(getattr(bridge, name)):
        def _update_learning_rate(self, optimizers):
            for group in optimizers.param_groups:
                group["lr"] = 0.0

    model = make(Frozen, where)
    before = vector(model.policy)
    model.learn(64)
    assert torch.equal(vector(model.policy), before)


@pytest.mark.parametrize("lib", LIBRARIES)
@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_what_a_method_freezes_within_an_update_keeps_its_values_and_the_method_is_called_once(name, lib):
    class Freezing(getattr(lib, name)):
        calls, frozen = 0, None

        def _update_learning_rate(self, optimizers):
            self.calls += 1
            part = self.policy.mlp_extractor.policy_net if name == "PPO" else self.critic.qf0
            if self.calls == 2:
                part.requires_grad_(False)
                self.frozen = part, vector(part)
            super()._update_learning_rate(optimizers)

    model = make(Freezing)
    model.learn(64)
    part, values = model.frozen
    assert torch.equal(vector(part), values)
    assert model.calls == (4 if name == "PPO" else 58)


@pytest.mark.parametrize("lib", LIBRARIES)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_hook_for_infos_hears_of_every_step(name, where, lib):
    class Counting(getattr(lib, name)):
        calls = 0

        def _update_info_buffer(self, infos, dones=None):
            self.calls += len(infos)
            super()._update_info_buffer(infos, dones)

    model = make(Counting, where)
    model.learn(32)
    assert model.calls == 32


def test_a_mixin_behind_the_algorithm_keeps_its_methods():
    class Halved(stable_baselines3.SAC):
        def train(self, *args, **kwargs):
            super().train(*args, **kwargs)
            zero(self.critic)

    class Both(bridge.SAC, Halved):
        pass

    model = make(Both)
    model.learn(20)
    assert "train" in model.plan.user_code


def test_a_loop_of_ones_own_sees_and_changes_what_trains():
    class Own(bridge.SAC):
        def collect_rollouts(self, *args, **kwargs):
            return stable_baselines3.SAC.collect_rollouts(self, *args, **kwargs)

    model = make(Own)
    model.learn(40, AtStep({20}, lambda model: setattr(model, "tau", 1.0)))
    assert torch.equal(vector(model.critic), vector(model.critic_target))


def test_methods_that_no_loop_calls_leave_all_compiled():
    class Named(bridge.SAC):
        def save(self, *args, **kwargs):
            super().save(*args, **kwargs)

        def describe(self):
            return "mine"

    assert make(Named, "JAX").plan.user_code == ()


# --- Updates by hand ------------------------------------------------------------------------------------------------


def test_networks_are_true_after_each_update_by_hand_and_what_is_written_there_counts():
    model = make(bridge.SAC)
    model.learn(20)
    model.set_logger(configure(None, []))
    seen = [vector(model.critic)]
    for _ in range(2):
        model.train(gradient_steps=1, batch_size=8)
        seen.append(vector(model.critic))
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    zero(model.critic, model.critic_target)
    model.train(gradient_steps=1, batch_size=8)
    assert vector(model.critic).abs().max() < 1e-3


def test_parameters_that_are_set_after_an_update_by_hand_are_saved(tmp_path):
    model = make(bridge.SAC)
    model.learn(20)
    model.set_logger(configure(None, []))
    before = copy.deepcopy(model.get_parameters())
    model.train(gradient_steps=1, batch_size=8)
    model.set_parameters(before)
    model.save(tmp_path / "model")
    saved = stable_baselines3.SAC.load(tmp_path / "model")
    for name, tensor in before["policy"].items():
        assert torch.equal(saved.policy.state_dict()[name], tensor), name


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG", "DQN"])
def test_an_update_by_hand_takes_sb3s_number_of_rows(name):
    model, asked = make(getattr(bridge, name), buffer_size=200), []
    model.learn(20)
    model.set_logger(configure(None, []))
    sample = model.replay_buffer.sample
    model.replay_buffer.sample = lambda num, env=None: asked.append(num) or sample(num, env)
    model.train(gradient_steps=1)
    assert asked == [64 if name == "SAC" else 100]


# --- Replaced parts -------------------------------------------------------------------------------------------------


def test_methods_put_into_buffers_and_environments_are_called():
    calls = []

    def counting(name, function):
        return lambda *args, **kwargs: calls.append(name) or function(*args, **kwargs)

    model = make(bridge.DQN, "JAX")
    for name in ("add", "sample"):
        setattr(model.replay_buffer, name, counting(name, getattr(model.replay_buffer, name)))
    model.learn(20)
    assert {name: calls.count(name) for name in ("add", "sample")} == {"add": 20, "sample": 4}
    model = make(bridge.PPO, "JAX")
    for name in ("compute_returns_and_advantage", "get"):
        setattr(model.rollout_buffer, name, counting(name, getattr(model.rollout_buffer, name)))
    model.learn(32)
    assert (calls.count("compute_returns_and_advantage"), calls.count("get")) == (2, 2)
    env = environments("JAX", "discrete")
    env.step_wait = counting("step_wait", env.step_wait)
    make(bridge.PPO, env=env).learn(32)
    assert calls.count("step_wait") == 32


@pytest.mark.thorough
def test_environments_put_into_a_wrapper_are_stepped():
    env = VecMonitor(environments("JAX", "discrete"))
    model = make(bridge.PPO, env=env)
    model.learn(16)
    env.venv = JaxVecEnv(TimeLimit(Counter(100, "box", "discrete"), 100), 1, seed=0)
    model.learn(32)
    assert model.rollout_buffer.observations.max() > 16


def test_a_network_put_into_the_model_is_the_one_that_trains():
    losses = []
    for lib in LIBRARIES:
        model = make(lib.DQN, learning_rate=0.0, gamma=0.9)
        model.q_net_target = copy.deepcopy(model.q_net)
        zero(model.q_net, model.q_net_target)
        with torch.no_grad():
            model.q_net_target.q_net[-1].bias.fill_(100.0)
        model.set_logger(configure(None, []))
        model.learn(20)
        losses.append(model.logger.name_to_value["train/loss"])
    assert losses[0] > 10
    assert losses[1] == pytest.approx(losses[0], rel=0.5)


# --- Numbers --------------------------------------------------------------------------------------------------------


def test_actions_of_a_box_of_float64_lie_in_it():
    env = HostCounter(dtype=np.float64)
    env.action_space = spaces.Box(-0.1, 0.1, (2,), np.float64)
    sent, step = [], env.step
    env.step = lambda action: sent.append(action) or step(action)
    model = bridge.SAC("MlpPolicy", env, **copy.deepcopy(OFF_POLICY))
    with torch.no_grad():
        model.actor.mu.bias.fill_(100.0)
    model.learn(20)
    assert all(env.action_space.contains(action) for action in sent)


@pytest.mark.thorough
def test_training_goes_on_beyond_the_numbers_of_an_int32():
    model = make(bridge.DQN, "JAX", train_freq=1)
    model.learn(10)
    model.num_timesteps, model._n_calls = 2**31, 2**31
    before = model._n_updates
    model.learn(20, reset_num_timesteps=False)
    assert (model.num_timesteps, model._n_updates) == (2**31 + 20, before + 20)


@pytest.mark.thorough
def test_fps_does_not_count_compilation(monkeypatch):
    model = make(bridge.PPO, "JAX")
    model.learn(16)
    start = model.start_time
    compiled = iter([0.0, 30.0])
    monkeypatch.setattr("bridge.algorithms.common.compiled_algorithm.compile_seconds", lambda: next(compiled))
    model._setup_learn(16)
    model.start_time -= 60 * 10**9
    model._recorded_at -= 60 * 10**9
    before = model.start_time
    model._record_compile_time()
    assert before - start < 0
    assert model.start_time - before == 30 * 10**9
