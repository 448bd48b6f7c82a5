"""What users' code changes while `train` runs, at which an update that was to be compiled is left to SB3's `train`."""

import io

import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.logger import Logger

from tests.bridge.algorithms.user_code.own_code_models import LIBRARIES, make, vector


class Freezing(ReplayBuffer):
    """Freezes a parameter of the model when it is asked for its second sample, and reads the model's buffer."""

    model, calls = None, 0

    def sample(self, *args, **kwargs):
        self.calls += 1
        if self.calls == 2:
            network = getattr(self.model, "q_net", None) or self.model.critic
            next(network.parameters()).requires_grad_(False)
        assert self.model.replay_buffer is self
        return super().sample(*args, **kwargs)


def updated(cls, **settings):
    """Return a model after a `train` of four gradient steps, within the second of which a parameter is frozen."""
    model = make(cls, replay_buffer_class=Freezing, gradient_steps=4, train_freq=7, **settings)
    model.replay_buffer.model = model
    return model.learn(7)


def test_the_rest_of_a_train_is_sb3s_and_so_is_what_is_logged():
    stock, ours = (updated(lib.DQN, exploration_fraction=1e-9, exploration_final_eps=0.0) for lib in LIBRARIES)
    assert (stock.replay_buffer.calls, ours.replay_buffer.calls) == (4, 4)
    assert (stock._n_updates, ours._n_updates) == (4, 4)
    logged = [model.logger.name_to_value["train/loss"] for model in (stock, ours)]
    np.testing.assert_allclose(*logged, rtol=1e-5)
    np.testing.assert_allclose(vector(stock.q_net), vector(ours.q_net), rtol=1e-4, atol=1e-6)
    assert "sample" not in vars(ours.replay_buffer)


@pytest.mark.parametrize("lib", LIBRARIES)
def test_targets_are_updated_where_sb3_updates_them(lib):
    model = updated(lib.SAC, target_update_interval=2, tau=1.0)
    assert not torch.equal(vector(model.critic), vector(model.critic_target))  # the last update was before the fourth
    assert type(model.target_update_interval) is int


class Acts(Logger):
    """Calls a function when a certain entry is recorded."""

    def __init__(self, name, function):
        super().__init__(None, [])
        self.name, self.function = name, function

    def record(self, key, value, exclude=None):
        if key == self.name:
            self.function()
        super().record(key, value, exclude)


class FreezesAtFirst:
    """Mixin whose first update of the learning rate freezes a parameter."""

    has_frozen = False

    def _update_learning_rate(self, optimizers):
        if not self.has_frozen:
            next(self.policy.parameters()).requires_grad_(False)
            self.has_frozen = True
        super()._update_learning_rate(optimizers)


@pytest.mark.parametrize("lib", LIBRARIES)
def test_what_a_logger_sets_meanwhile_stays(lib):
    model = make(type("Own", (FreezesAtFirst, lib.PPO), {}), clip_range=lambda _: float(io.StringIO("0.2").read()))
    model.set_logger(Acts("train/clip_range", lambda: setattr(model, "clip_range", lambda _: 0.5)))
    model.learn(32)
    assert model.logger.name_to_value["train/clip_range"] == 0.5


@pytest.mark.parametrize("lib", LIBRARIES)
def test_a_zip_that_is_saved_meanwhile_holds_nothing_of_it(lib):
    files = []

    def save():
        files.append(io.BytesIO())
        model.save(files[-1])

    model = make(type("Own", (FreezesAtFirst, lib.SAC), {}), train_freq=7)
    model.set_logger(Acts("train/critic_loss", save))
    model.learn(7)
    assert "_update_learning_rate" not in vars(stable_baselines3.SAC.load(files[0]))


@pytest.mark.parametrize("lib", LIBRARIES)
def test_a_schedule_may_set_the_learning_rate(lib):
    def clip_range(_):
        for group in model.policy.optimizer.param_groups if model else ():
            group["lr"] = 0.0
        return 0.2

    model = None
    model = make(lib.PPO, clip_range=clip_range)
    before = vector(model.policy)
    model.learn(16)
    assert torch.equal(vector(model.policy), before)
