"""Callbacks of `jaxenvs train`: compiled functions run on between the steps that they need."""

import io
import sys

import pytest

from bridge.algorithms.specs import ALGORITHMS
from bridge.app.training.callbacks import move, progress_bar
from bridge.engine.callbacks.callback_schedule import Pace
from bridge.engine.off_policy import compiled_training as off_policy
from bridge.engine.on_policy import compiled_training as on_policy
from jaxenvs import cli

COMPILED = (off_policy.run_steps, on_policy.run_iterations, on_policy.run_rollout)
STEPS = 240
SETTINGS = {
    False: ["n_steps=8"],
    True: ["batch_size=8", "learning_starts=20", "buffer_size=300", "train_freq=4", "policy_kwargs={'net_arch':[8]}"],
}


def count_calls(monkeypatch, functions):
    """Return a list that grows with each call of a function, by whatever module's name it is called."""
    calls = []

    def counting(function):
        def call(*args, **kwargs):
            calls.append(function)
            return function(*args, **kwargs)

        return call

    for function in functions:
        for module in [each for name, each in sys.modules.items() if name.startswith("bridge.")]:
            if getattr(module, function.__name__, None) is function:
                monkeypatch.setattr(module, function.__name__, counting(function))
    return calls


def test_a_bar_ends_at_its_total_and_shows_that_once():
    shown = io.StringIO()
    with progress_bar(total=100, file=shown, mininterval=0) as bar:
        for num_timesteps in (64, 128):  # the budget ends in the second rollout
            move(bar, num_timesteps)
    assert [line.split("%")[0].strip() for line in shown.getvalue().strip().split("\r")] == ["0", "64", "100"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "maskable" not in name])
def test_the_command_makes_few_calls_of_compiled_functions(name, tmp_path, monkeypatch):
    spec = ALGORITHMS[name]
    env_id = "Pendulum-v1" if spec.actions == "Box" else "CartPole-v1"
    monkeypatch.setattr(Pace, "next", lambda self, most: most)  # otherwise it depends on the machine's speed
    calls = count_calls(monkeypatch, COMPILED)
    arguments = ["train", name, env_id, "--total-timesteps", str(STEPS), "--num-envs", "1", "--out", str(tmp_path)]
    cli.main([*arguments, "--hyperparameters", *SETTINGS[spec.is_off_policy]])
    # Off-policy, a log of every fourth episode ends a call; on-policy, a rollout of eight steps.
    assert 1 <= len(calls) <= (STEPS // 20 if spec.is_off_policy else STEPS // 8)
