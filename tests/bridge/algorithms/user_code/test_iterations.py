"""What is left of an iteration that was interrupted or changed, and what zips hold."""

import io

import numpy as np
import pytest
import stable_baselines3
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

import bridge
from tests.bridge.algorithms.user_code.own_code_models import LIBRARIES, WHERE, AtStep, make
from tests.bridge.small_models import Noop, with_n_steps


def test_a_shorter_train_freq_begins_a_new_iteration():
    model = make(bridge.SAC, "JAX", train_freq=8, gradient_steps=-1).learn(16)
    model._step_of_iteration, model._begun_with = 5, model.train_freq  # as Ctrl-C leaves it
    model.train_freq = TrainFreq(1, TrainFrequencyUnit.STEP)
    assert model.learn(4, reset_num_timesteps=False).num_timesteps == 20


class Changes(bridge.ScheduledCallback):
    """Changes `train_freq` at the end of the second episode, in the middle of an iteration."""

    def __init__(self, train_freq):
        super().__init__()
        self.train_freq = train_freq

    def _on_step(self):
        if self.num_timesteps > 8 and np.any(self.locals.get("dones", False)):
            self.model.train_freq = self.train_freq
        return True


@pytest.mark.thorough(but=["bridge-JAX-1", "bridge-JAX-episode", "bridge-Gymnasium-1", "bridge-Gymnasium-9"])
@pytest.mark.parametrize("new", [1, 9, "episode"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lib", LIBRARIES)
def test_a_changed_train_freq_counts_from_the_next_iteration(lib, where, new, tmp_path):
    model = make(lib.SAC, where, train_freq=8, gradient_steps=-1, learning_starts=6)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    unit = TrainFrequencyUnit.EPISODE if new == "episode" else TrainFrequencyUnit.STEP
    model.learn(32, Changes(TrainFreq(1 if new == "episode" else new, unit)), log_interval=1)
    assert (model.num_timesteps, model._n_updates) == {1: (32, 32), 9: (34, 34), "episode": (35, 35)}[new]


class ChangesAtStart(bridge.ScheduledCallback):
    """Changes `train_freq` in `on_rollout_start`."""

    def __init__(self, train_freq):
        super().__init__()
        self.train_freq, self.starts = train_freq, []

    def _on_rollout_start(self):
        self.starts.append(self.num_timesteps)
        if self.num_timesteps == 8:
            self.model.train_freq = self.train_freq

    def _on_step(self):
        return True


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lib", LIBRARIES)
def test_a_rollout_that_has_started_keeps_its_train_freq(lib, where):
    callback = ChangesAtStart(TrainFreq(1, TrainFrequencyUnit.EPISODE))
    model = make(lib.SAC, where, train_freq=8, gradient_steps=-1).learn(28, callback)
    assert (callback.starts, model._n_updates) == ([0, 8, 16, 20, 25], 30)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("lib", LIBRARIES)
def test_an_iteration_of_an_episode_has_an_update_for_each_of_its_steps(lib, where):
    model = make(lib.SAC, where, train_freq=(1, "episode"), gradient_steps=-1, learning_starts=2)
    step = AtStep([8], lambda model: setattr(model, "train_freq", TrainFreq(3, TrainFrequencyUnit.STEP)))
    assert model.learn(16, step)._n_updates == 16


def test_an_iteration_that_ctrl_c_ended_has_not_begun_the_next_rollout():
    starts = []

    class Starts(Noop):
        def _on_rollout_start(self):
            starts.append(self.num_timesteps)

    model = make(bridge.PPO, "JAX")
    model._has_begun = True
    model.learn(32, Starts())
    assert starts == [0, 16]


def test_a_replay_buffer_in_a_zip_is_sb3s():
    model, file = make(bridge.SAC).learn(12), io.BytesIO()
    buffer = model.replay_buffer
    model.save(file, include=["replay_buffer"])
    assert model.replay_buffer is buffer
    stock = stable_baselines3.SAC.load(file).replay_buffer
    assert type(stock) is ReplayBuffer
    assert stock.size() == 12
    ours = bridge.SAC.load(file).replay_buffer
    assert type(ours) is bridge.ReplayBuffer
    assert (ours.observations == buffer.observations).all()


@pytest.mark.parametrize("lib", LIBRARIES)
def test_models_that_are_loaded_with_one_buffer_share_it(lib):
    model, file = make(lib.SAC).learn(12), io.BytesIO()
    model.save(file)
    buffer = ReplayBuffer(50, model.observation_space, model.action_space, device="cpu")
    for _ in range(2):
        loaded = lib.SAC.load(file, env=model.get_env(), replay_buffer=buffer)
        assert loaded.replay_buffer is buffer
        loaded.learn(10, reset_num_timesteps=False)
    assert buffer.size() == 20


@with_n_steps
@pytest.mark.parametrize("lib", LIBRARIES)
def test_n_steps_of_the_constructor_win(lib):
    buffer = make(lib.SAC, n_steps=3, gamma=0.9, replay_buffer_kwargs={"n_steps": 2, "gamma": 0.5}).replay_buffer
    assert (buffer.n_steps, buffer.gamma) == (3, 0.9)
