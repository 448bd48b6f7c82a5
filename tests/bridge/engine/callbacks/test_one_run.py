"""One seed is one run, whoever looks: on JAX environments, a callback changes no bit of a training."""

import copy

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback

import bridge
from bridge import ScheduledCallback
from bridge.algorithms.common import off_policy_algorithm
from bridge.algorithms.specs import SPECS
from jaxenvs import TimeLimit
from tests.bridge.algorithms.off_policy import off_policy_models
from tests.environments import Counter
from tests.masked_environments import Locks
from tests.rounding import assert_same_bits

SETTINGS = {
    "A2C": {"n_steps": 6},
    "PPO": {"n_steps": 6, "batch_size": 6, "n_epochs": 2},
    "MaskablePPO": {"n_steps": 6, "batch_size": 6, "n_epochs": 2},
    "RecurrentPPO": {"n_steps": 6, "batch_size": 6, "n_epochs": 2, "policy": "MlpLstmPolicy"},
}
STEPS = 60


class Noop(BaseCallback):
    def _on_step(self):
        return True


class Scheduled(ScheduledCallback):
    """Announces every 11th call, and counts the ends of episodes."""

    ends = announced = 0

    def steps_until_needed(self, num_timesteps, num_envs):
        return 10 - self.n_calls % 11

    def _on_step(self):
        self.ends += int(self.locals["dones"].sum())
        self.announced += self.n_calls % 11 == 0 and "actions" in self.locals
        return True


def make(name):
    if name == "DDPG":
        settings = copy.deepcopy(off_policy_models.SETTINGS | off_policy_models.OWN["TD3"])  # SB3 writes into it
        return bridge.DDPG("MlpPolicy", off_policy_models.make_env(name), **settings)
    if SPECS[name].is_off_policy:
        return off_policy_models.make(name)
    settings = {"policy": "MlpPolicy", "policy_kwargs": {"net_arch": [8]}, **SETTINGS[name]}
    if name == "RecurrentPPO":
        settings["policy_kwargs"] = {"net_arch": [8], "lstm_hidden_size": 4}
    # The limit of steps ends episodes, so that values of their last observations are added to rewards.
    env = Locks(5) if name == "MaskablePPO" else TimeLimit(Counter(9, "box", "box"), 7)
    return SPECS[name].cls(env=bridge.JaxVecEnv(env, 2, 0), seed=0, device="cpu", **settings)


def weights(model):
    return np.concatenate([np.ravel(each.detach().numpy()) for each in model.policy.parameters()])


def episodes(model):
    return [(each["r"], each["l"]) for each in model.ep_info_buffer]


@pytest.mark.parametrize("name", SPECS)
def test_a_seed_is_one_run_whoever_looks(name):
    expected = make(name).learn(STEPS)
    scheduled = Scheduled()
    evaluation = EvalCallback(make(name).get_env(), eval_freq=8, n_eval_episodes=1, verbose=0, warn=False)
    if name == "MaskablePPO":
        evaluation = Noop()  # SB3's EvalCallback knows no masks
    for callback in (Noop(), scheduled, evaluation):
        model = make(name).learn(STEPS, callback)
        what = type(callback).__name__
        same = assert_same_bits if name == "TD3" else np.testing.assert_array_equal
        same(weights(model), weights(expected), err_msg=what)
        np.testing.assert_array_equal(model._last_obs, expected._last_obs, err_msg=what)
        assert model.num_timesteps == expected.num_timesteps
        assert episodes(model) == episodes(expected)
    assert scheduled.ends > 5
    assert scheduled.announced == expected.num_timesteps // 2 // 11


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if spec.is_off_policy])
def test_short_calls_of_learn_take_steps_in_sb3s_loop_and_change_no_bit(name, monkeypatch):
    def in_short_calls():
        model = make(name).learn(40)
        for num_timesteps in (2, 8, 6, 4):
            model.learn(num_timesteps, reset_num_timesteps=False)
        return model

    calls = []
    run_steps = off_policy_algorithm.run_steps
    monkeypatch.setattr(off_policy_algorithm, "run_steps", lambda *args: calls.append(args[2]) or run_steps(*args))
    ours = in_short_calls()
    assert sum(calls) < 25  # of each of two environments, in the first call alone
    monkeypatch.setattr(off_policy_algorithm, "FEW_STEPS", 0)
    compiled = in_short_calls()
    assert sum(calls) > 40
    np.testing.assert_array_equal(weights(ours), weights(compiled))
    np.testing.assert_array_equal(ours._last_obs, compiled._last_obs)
