"""Short runs of the command, in this process, and what they left."""

import signal

import pytest
import torch
from stable_baselines3 import PPO

from bridge.app.training import callbacks
from bridge.seeds import SeedSweep
from jaxenvs import cli

# What a run is made of here, so that all of them share their programs.
TINY = ["--num-envs", "2", "--total-timesteps", "128", "--hyperparameters", "n_epochs=1"]

OWN_ENVIRONMENT = """
import gymnasium, jax, jax.numpy as jnp, numpy as np
from jaxenvs import Environment, TimeStep, environment, register, static, struct


@struct
class State:
    position: jax.Array


@environment
class Walk(Environment[State]):
    goal: float = 1.0
    size: tuple = static(default=(5, 5))
    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, key):
        state = State(0.5 * jax.random.uniform(key))
        return state, TimeStep.create(jnp.full(4, state.position))

    def step(self, state, action):
        state = State(jnp.clip(state.position + jnp.where(action == 1, 0.1, -0.1), -1, 1))
        timestep = TimeStep.create(jnp.full(4, state.position), -0.1, terminated=state.position >= self.goal)
        return state, timestep


@environment
class DrawnWalk(Walk):
    def render(self, state):
        picture = np.zeros((20, 40, 3), np.uint8)
        picture[:, int(20 + 15 * float(state.position))] = 255
        return picture


register("{name}-v0", DrawnWalk, max_episode_steps=20)
register("{name}Endless-v0", Walk)
"""


def weights(folder, algorithm=PPO):
    return algorithm.load(folder / "model.zip", device="cpu").policy.state_dict()


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


class Killed(BaseException):
    """Exception as of a signal, at the worst moment for Python."""


def train_and_kill(train, out, after):
    """Train with a checkpoint before each rollout, and end the training as a signal would, after a number of steps."""
    step = callbacks.EpisodeLog._on_step

    def killing(self):
        if self.num_timesteps > after:
            raise Killed
        return step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callbacks, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(callbacks, "CHECKPOINT_SHARE", 1e9)
        patch.setattr(callbacks.EpisodeLog, "_on_step", killing)
        with pytest.raises(Killed):
            train(out)
    assert not (out / "model.zip").exists()
    return out


def train_and_interrupt(train, out):
    """Train in calls of a sweep, and let Ctrl-C come in the first one."""

    def compile_and_interrupt(*arguments):
        program = compile_rows(*arguments)

        def run(*arguments):
            signal.raise_signal(signal.SIGINT)
            return program(*arguments)

        return run

    compile_rows = SeedSweep._compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SeedSweep, "_compile", compile_and_interrupt)
        with pytest.raises(SystemExit) as exit_info:
            train(out)
    assert exit_info.value.code == 130


def error_of(capsys, *argv):
    """The one line that the command ends with."""
    capsys.readouterr()  # the bar of a training before it
    with pytest.raises(SystemExit) as exit_info:
        cli.main(list(argv))
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message
