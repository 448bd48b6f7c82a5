"""What users do besides calling `learn`: what their own code writes is what trains, as with stock Stable-Baselines3."""

import copy

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common import utils
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise
from stable_baselines3.common.vec_env import VecMonitor

import bridge
from bridge import JaxVecEnv
from jaxenvs import TimeLimit
from tests.environments import Counter

LIBRARIES = [stable_baselines3, bridge]
WHERE = ["JAX", "Gymnasium"]
SETTINGS = {"seed": 0, "device": "cpu", "policy_kwargs": {"net_arch": [8]}}
OFF_POLICY = {**SETTINGS, "learning_starts": 6, "buffer_size": 200, "batch_size": 8}


class HostCounter(gymnasium.Env):
    """Counts its steps and ends after five."""

    def __init__(self, kind="box", dtype=np.float32):
        self.observation_space = spaces.Box(0, 100, (2,))
        self.action_space = spaces.Box(-1.0, 1.0, (2,), dtype) if kind == "box" else spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(2, self.count, np.float32), 1.0, self.count == 5, False, {}


def environments(where, kind="box"):
    return JaxVecEnv(TimeLimit(Counter(5, "box", kind), 7), 1, seed=0) if where == "JAX" else HostCounter(kind)


def make(cls, where="Gymnasium", **settings):
    kind = "discrete" if issubclass(cls, stable_baselines3.DQN) else "box"
    return cls("MlpPolicy", environments(where, kind), **copy.deepcopy({**OFF_POLICY, **settings}))


def make_on_policy(cls, where="JAX", env=None, **settings):
    given = {**SETTINGS, "n_steps": 16, **settings}
    if issubclass(cls, stable_baselines3.PPO):
        given = {"batch_size": 16, "n_epochs": 1, **given}
    return cls("MlpPolicy", environments(where, "discrete") if env is None else env, **copy.deepcopy(given))


def vector(module):
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


class AtStep(BaseCallback):
    """Calls a function with the model at some steps."""

    def __init__(self, steps, function):
        super().__init__()
        self.steps, self.function = steps, function

    def _on_step(self):
        if self.num_timesteps in self.steps:
            self.function(self.model)
        return True


def zero(*modules):
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.zero_()


# --- Methods of a subclass ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("where", WHERE)
def test_a_method_that_is_put_into_a_class_after_a_training_is_called(where):
    class Own(bridge.SAC):
        pass

    model, called = make(Own, where).learn(8), []
    Own.train = lambda *_, **__: called.append(1)
    model.learn(8, reset_num_timesteps=False)
    assert called


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


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_a_rule_of_ones_own_for_the_learning_rate_counts(name, where):
    class Frozen(getattr(bridge, name)):
        def _update_learning_rate(self, optimizers):
            for group in optimizers.param_groups:
                group["lr"] = 0.0

    model = make_on_policy(Frozen, where)
    before = vector(model.policy)
    model.learn(64)
    assert torch.equal(vector(model.policy), before)


@pytest.mark.parametrize("lib", LIBRARIES)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_hook_for_infos_hears_of_every_step(name, where, lib):
    class Counting(getattr(lib, name)):
        calls = 0

        def _update_info_buffer(self, infos, dones=None):
            self.calls += len(infos)
            super()._update_info_buffer(infos, dones)

    model = (make_on_policy if name == "PPO" else make)(Counting, where)
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
    assert "train" in model.plan.others


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

    assert make(Named, "JAX").plan.others == ()


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


@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG", "DQN"])
def test_an_update_by_hand_takes_sb3s_number_of_rows(name):
    model, asked = make(getattr(bridge, name), buffer_size=200), []
    model.learn(20)
    model.set_logger(configure(None, []))
    sample = model.replay_buffer.sample
    model.replay_buffer.sample = lambda num, env=None: asked.append(num) or sample(num, env)
    model.train(gradient_steps=1)
    assert asked == [64 if name == "SAC" else 100]


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


@pytest.mark.parametrize("where", WHERE)
def test_what_is_written_as_a_rollout_starts_trains_and_is_seen_in_its_first_step(where):
    callback = Reset()
    make(bridge.SAC, where).learn(24, callback)
    assert callback.seen[19] > 0.1
    assert callback.seen[20] == 0.0
    assert 0 < callback.seen[21] < 0.01


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lib", LIBRARIES)
def test_as_a_rollout_starts_the_update_before_it_has_taken_place(lib, where):
    class Updates(BaseCallback):
        def _init_callback(self):
            self.seen = []

        def _on_rollout_start(self):
            self.seen.append(self.model._n_updates)

        def _on_step(self):
            return True

    callback = Updates()
    make(lib.SAC, where).learn(12, callback)
    assert callback.seen == [0] * 7 + [1, 2, 3, 4, 5]


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


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_rewards_that_a_callback_adds_to_are_learnt_from(name, where):
    settings = {"learning_rate": 0.0, "gamma": 0.5}
    ours, stock = (make_on_policy(getattr(lib, name), where, **settings) for lib in (bridge, stable_baselines3))
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


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", ["PPO", "DQN", "SAC"])
def test_a_schedule_with_a_memory_is_asked_as_often_as_by_sb3(name, where):
    calls = []
    for lib in LIBRARIES:
        decay = Decay()
        maker = make_on_policy if name == "PPO" else make
        model = maker(getattr(lib, name), where, learning_rate=decay)
        model.learn(48)
        calls.append(decay.calls)
    assert calls[0] == calls[1]


def test_what_a_schedule_reads_decides_whether_it_may_be_asked_ahead():
    from bridge.engine.trust import _is_known_schedule

    rate, calls = 0.1, []

    def counting(left):
        calls.append(left)
        return left

    def with_counter():
        count = 0

        def schedule(left):
            nonlocal count
            count += 1
            return left / count

        return schedule

    def linear(initial):
        def schedule(left):
            return max(left * initial, float(np.float32(1e-5)))

        return schedule

    assert _is_known_schedule(lambda left: rate * left)
    assert _is_known_schedule(linear(0.1))
    assert _is_known_schedule(utils.LinearSchedule(1.0, 0.0, 0.5) if hasattr(utils, "LinearSchedule") else linear(1))
    assert not any(map(_is_known_schedule, (counting, with_counter(), Decay())))


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
        model = (make_on_policy if name == "PPO" else make)(getattr(lib, name), where)
        model.set_logger(Rows())
        model.learn(64, log_interval=1)
        rows.append(model.logger.rows)
    assert rows[0] == rows[1]
    assert len(rows[0]) >= 4


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_a_log_after_minus_one_episodes_is_one_after_each(name, capsys):
    make(getattr(bridge, name), "JAX", verbose=1).learn(20, log_interval=-1)
    assert capsys.readouterr().out.count("total_timesteps") == 4


def test_a_subclass_of_a_noise_is_asked_itself():
    class Silent(VectorizedActionNoise):
        def __call__(self):
            return 0 * super().__call__()

    noise = Silent(NormalActionNoise(np.zeros(2), np.ones(2)), 1)
    model = make(bridge.TD3, learning_rate=0.0, action_noise=noise, learning_starts=0)
    model.learn(20)
    actions = model.replay_buffer.actions[:20, 0]
    assert len(np.unique(actions.round(6), axis=0)) == 5  # one for each observation


# --- What is put in the place of parts ------------------------------------------------------------------------------


def test_methods_put_into_buffers_and_environments_are_called():
    calls = []

    def counting(name, function):
        return lambda *args, **kwargs: calls.append(name) or function(*args, **kwargs)

    model = make(bridge.DQN, "JAX")
    for name in ("add", "sample"):
        setattr(model.replay_buffer, name, counting(name, getattr(model.replay_buffer, name)))
    model.learn(20)
    assert {name: calls.count(name) for name in ("add", "sample")} == {"add": 20, "sample": 4}
    model = make_on_policy(bridge.PPO)
    for name in ("compute_returns_and_advantage", "get"):
        setattr(model.rollout_buffer, name, counting(name, getattr(model.rollout_buffer, name)))
    model.learn(32)
    assert (calls.count("compute_returns_and_advantage"), calls.count("get")) == (2, 2)
    env = environments("JAX", "discrete")
    env.step_wait = counting("step_wait", env.step_wait)
    make_on_policy(bridge.PPO, env=env).learn(32)
    assert calls.count("step_wait") == 32


def test_environments_put_into_a_wrapper_are_stepped():
    env = VecMonitor(environments("JAX", "discrete"))
    model = make_on_policy(bridge.PPO, env=env)
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


def test_training_goes_on_beyond_the_numbers_of_an_int32():
    model = make(bridge.DQN, "JAX", train_freq=1)
    model.learn(10)
    model.num_timesteps, model._n_calls = 2**31, 2**31
    before = model._n_updates
    model.learn(20, reset_num_timesteps=False)
    assert (model.num_timesteps, model._n_updates) == (2**31 + 20, before + 20)


def test_fps_does_not_count_compilation(monkeypatch):
    model = make_on_policy(bridge.PPO)
    model.learn(16)
    start = model.start_time
    compiled = iter([0.0, 30.0])
    monkeypatch.setattr("bridge.algorithms.base.compile_seconds", lambda: next(compiled))
    model._setup_learn(16)
    model.start_time -= 60 * 10**9
    model._recorded_at -= 60 * 10**9
    before = model.start_time
    model._record_compile_time()
    assert before - start < 0
    assert model.start_time - before == 30 * 10**9
