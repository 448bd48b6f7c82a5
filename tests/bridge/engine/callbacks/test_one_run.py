"""One seed is one run, whoever looks: on JAX environments, a callback changes no bit of a training."""

import itertools

import numpy as np
import pytest
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from stable_baselines3.common.callbacks import EvalCallback

from bridge import ScheduledCallback
from bridge.algorithms.common import off_policy_algorithm
from bridge.algorithms.specs import SPECS
from tests.bridge.algorithms.cases import STEPS, make
from tests.bridge.small_models import Noop
from tests.rounding import assert_same_bits


class Scheduled(ScheduledCallback):
    """Announces every 11th call, and counts the ends of episodes."""

    ends = announced = 0

    def steps_until_needed(self, num_timesteps, num_envs):
        return 10 - self.n_calls % 11

    def _on_step(self):
        self.ends += int(self.locals["dones"].sum())
        self.announced += self.n_calls % 11 == 0 and "actions" in self.locals
        return True


def weights(model):
    return np.concatenate([np.ravel(each.detach().numpy()) for each in model.policy.parameters()])


def episodes(model):
    return [(each["r"], each["l"]) for each in model.ep_info_buffer]


def evaluation(name):
    kind = MaskableEvalCallback if name.startswith("Maskable") else EvalCallback
    return kind(make(name).get_env(), eval_freq=8, n_eval_episodes=1, verbose=0, warn=False)


CALLBACKS = {"no-op": lambda _: Noop(), "scheduled": lambda _: Scheduled(), "evaluation": evaluation}
CASES = list(itertools.product(SPECS, CALLBACKS))


@pytest.mark.thorough(but=["PPO-scheduled", "PPO-no-op", "DQN-scheduled", "DQN-no-op"])
@pytest.mark.parametrize(("name", "callback"), CASES)
def test_a_seed_is_one_run_whoever_looks(name, callback):
    looks = CALLBACKS[callback](name)
    expected, model = make(name).learn(STEPS[name]), make(name).learn(STEPS[name], looks)
    same = assert_same_bits if name == "TD3" else np.testing.assert_array_equal
    same(weights(model), weights(expected))
    np.testing.assert_array_equal(model._last_obs, expected._last_obs)
    assert model.num_timesteps == expected.num_timesteps
    assert episodes(model) == episodes(expected)
    if callback == "scheduled":
        assert looks.ends > 5
        assert looks.announced == STEPS[name] // expected.n_envs // 11


@pytest.mark.thorough
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
