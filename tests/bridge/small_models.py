"""Models of one small shape for many tests, so that they share their programs; and callbacks that watch them."""

import csv

import pytest
import stable_baselines3
from stable_baselines3.common import utils
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure

import bridge
from bridge import make_vec_env
from bridge.sb3 import NStepReplayBuffer

N_ENVS, N_STEPS = 4, 16
ROLLOUT = N_ENVS * N_STEPS
SETTINGS = {
    "n_steps": N_STEPS,
    "batch_size": 32,
    "n_epochs": 2,
    "policy_kwargs": {"net_arch": [8]},
    "seed": 0,
    "device": "cpu",
}
SB3 = stable_baselines3.PPO
# The schedules of the first versions of SB3 that are supported are lambdas.
with_picklable_schedules = pytest.mark.skipif(
    not hasattr(utils, "FloatSchedule"), reason="no model of this version of Stable-Baselines3 can be pickled"
)
with_n_steps = pytest.mark.skipif(
    NStepReplayBuffer is None, reason="this version of Stable-Baselines3 has no n-step returns"
)


def make_env(seed=0, **kwargs):
    return make_vec_env("CartPole-v1", N_ENVS, seed=seed, **kwargs)


def make(env=None, algorithm=bridge.PPO, policy="MlpPolicy", **settings):
    return algorithm(policy, make_env() if env is None else env, **{**SETTINGS, **settings})


class Recorder(BaseCallback):
    """Keeps the order of calls, and the locals of each step."""

    def __init__(self):
        super().__init__()
        self.events, self.steps = [], []

    def _on_training_start(self):
        self.events.append("training start")

    def _on_rollout_start(self):
        self.events.append("rollout start")

    def _on_step(self):
        self.events.append(self.num_timesteps)
        self.steps.append(dict(self.locals))
        return True

    def _on_rollout_end(self):
        self.events.append("rollout end")

    def _on_training_end(self):
        self.events.append("training end")


class Noop(BaseCallback):
    def _on_step(self):
        return True


class OnRolloutEnd(Noop):
    """Calls a function with the model at the end of each rollout."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def _on_rollout_end(self):
        self.function(self.model)


def logged(model, folder, total, **learn):
    """Train, and return the rows of the log without times."""
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(total, **learn)
    model.logger.close()
    times = {"time/fps", "time/time_elapsed", "time/compile_s"}
    with open(folder / "progress.csv") as file:
        return [{name: value for name, value in row.items() if name not in times} for row in csv.DictReader(file)]


def replayed(env, steps):
    """Step fresh environments through the actions of recorded steps: what each step gave there."""
    env.seed(0)
    env.reset()
    return [env.step(step["clipped_actions"]) for step in steps]
