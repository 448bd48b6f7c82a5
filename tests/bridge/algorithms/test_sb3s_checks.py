"""Checks, prints and logs of SB3 that bridge's algorithms reproduce."""

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, VecNormalize

import bridge
from tests.bridge.algorithms.cases import STEPS, Walk, host_env, make
from tests.stock import STOCK


@pytest.mark.parametrize("env", [Walk, lambda: bridge.make_vec_env("Pendulum-v1")], ids=["Gymnasium", "JAX"])
@pytest.mark.parametrize("train_freq", [0, (0, "episode")])
def test_to_collect_nothing_is_sb3s_error(env, train_freq):
    for library in (stable_baselines3, bridge):
        model = library.TD3("MlpPolicy", env(), train_freq=train_freq, learning_starts=2, buffer_size=10)
        with pytest.raises(AssertionError, match="Should at least collect one step or episode"):
            model.learn(4)


@pytest.mark.parametrize("backend", ["serial", "jax"])
def test_episodes_of_several_environments_are_sb3s_error(backend):
    for library in (stable_baselines3, bridge):
        model = library.TD3("MlpPolicy", bridge.make_vec_env("Pendulum-v1"), train_freq=(1, "episode"), buffer_size=10)
        model.n_envs, model.env = 2, bridge.make_vec_env("Pendulum-v1", 2, backend=backend)  # which set_env refuses
        model.replay_buffer.n_envs = 2
        with pytest.raises(AssertionError, match="only one env when doing episodic training"):
            model.learn(4)


class WithLists(VecEnvWrapper):
    """Gives dones as a list of bools, and rewards as a list of floats."""

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, rewards.tolist(), dones.tolist(), infos


@pytest.mark.parametrize("name", ["DQN", "TD3"])
def test_dones_may_be_a_list_as_in_sb3(name):
    buffers_ = []
    for library in (stable_baselines3, bridge):
        env = WithLists(DummyVecEnv([lambda: Walk("discrete" if name == "DQN" else "box")]))
        model = getattr(library, name)("MlpPolicy", env, learning_starts=100, buffer_size=40, seed=0, device="cpu")
        model.learn(30)
        buffers_.append(model.replay_buffer)
    theirs, ours = buffers_
    assert ours.dones[:30].any()
    for part in ("observations", "actions", "rewards", "dones"):
        np.testing.assert_array_equal(getattr(ours, part)[:30], getattr(theirs, part)[:30])


@pytest.mark.parametrize(
    "env", [Walk, lambda: DummyVecEnv([Walk]), lambda: Walk(observation="image"), lambda: "Acrobot-v1"]
)
def test_how_an_environment_is_wrapped_is_printed_as_by_sb3(env, capsys):
    printed = []
    for library in (stable_baselines3, bridge):
        library.PPO("MlpPolicy", env(), verbose=1, n_steps=8, batch_size=8, device="cpu")
        printed.append(capsys.readouterr().out.splitlines())
    theirs, ours = printed
    if env() == "Acrobot-v1":  # a JaxVecEnv, which is not wrapped, and is made before SB3 says which device it uses
        theirs = [line for line in reversed(theirs) if "Wrapping" not in line]
    assert ours == theirs


class Kept(KVWriter):
    """Keeps what was logged."""

    def __init__(self):
        self.rows = []

    def write(self, key_values, key_excluded, step=0):
        self.rows.append(dict(key_values))

    def close(self):
        pass


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["PPO", "A2C", "RecurrentPPO", "DQN", "SAC", "TD3", "QRDQN"])
def test_what_is_logged_has_sb3s_types_and_the_first_log_knows_what_was_compiled(name):
    types = []
    for library in (STOCK, bridge):
        model, kept = make(name, host_env(name), library), Kept()
        model.set_logger(Logger(None, [kept]))
        model.learn(STEPS[name], log_interval=1)
        if library is bridge:
            assert model.plan.actor is not None
            assert kept.rows[0]["time/compile_s"] >= 0
        merged = {key: type(value) for row in kept.rows for key, value in row.items()}
        types.append({key: kind for key, kind in merged.items() if key != "time/compile_s"})
    assert types[0] == types[1]
    assert any(key.startswith("train/") for key in types[0])


def test_without_compiled_functions_the_log_is_sb3s():
    model, kept = make("A2C", engine="torch"), Kept()
    model.set_logger(Logger(None, [kept]))
    model.learn(STEPS["A2C"], log_interval=1)
    assert "time/compile_s" not in kept.rows[0]


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5, "centered": True}])
def test_the_state_of_rmsprop_has_its_keys_in_pytorchs_order(settings):
    orders = []
    for library in (stable_baselines3, bridge):
        own = {"optimizer_class": torch.optim.RMSprop, "optimizer_kwargs": settings, "net_arch": [4]}
        model = make("A2C", gymnasium.make("Pendulum-v1"), library, use_rms_prop=False, policy_kwargs=own).learn(8)
        orders.append([list(state) for state in model.policy.optimizer.state.values()])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("name", ["PPO", "RecurrentPPO", "DQN"])
def test_a_multi_input_policy_needs_dicts(name):
    kind = "LstmPolicy" if name == "RecurrentPPO" else "Policy"
    with pytest.raises(ValueError, match=rf"You must use `Mlp{kind}`, .* space Box\(.*, not MultiInput{kind}"):
        getattr(bridge, name)(f"MultiInput{kind}", "CartPole-v1")
    settings = {} if name == "DQN" else {"n_steps": 8, "batch_size": 8}
    own = {"features_extractor_class": FlattenExtractor}
    getattr(bridge, name)(f"MultiInput{kind}", "CartPole-v1", policy_kwargs=own, **settings)


@pytest.mark.parametrize("wrap", [None, VecNormalize])
def test_an_eval_callback_warns_of_other_environments_where_sb3s_does(wrap, recwarn):
    warned = []
    for library in (stable_baselines3, bridge):
        env = DummyVecEnv([lambda: Monitor(gymnasium.make("CartPole-v1"))])
        callback = EvalCallback(env if wrap is None else wrap(env))
        recwarn.clear()
        library.PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu")._init_callback(callback)
        warned.append(sum("not of the same type" in str(each.message) for each in recwarn))
    assert warned == [wrap is not None] * 2
