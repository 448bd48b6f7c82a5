"""A policy is compiled if that is known to be the same as running its Python each time."""

import logging
import math
import os
import pathlib
import random
import sys
import time
import types

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback

import bridge
from bridge.errors import NotCompilable
from bridge.translate.policies.on_policy import export_policy, require_trainable
from bridge.translate.user_modules.snapshot import Snapshot
from tests.bridge.translate.policies.networks import extractor, forward_of, make
from tests.bridge.translate.user_modules import reaching
from tests.bridge.translate.user_modules.reaching import CHANGES, DRAWS_NUMBERS, SOURCES, UNKNOWN, drawing, extractor_of


def generators(*others):
    states = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002
    states += [str(each.bit_generator.state) for each in others if isinstance(each, np.random.Generator)]
    return [*states, *(each.getstate() for each in others if isinstance(each, random.Random))]


@pytest.mark.parametrize("what", CHANGES)
def test_a_forward_that_changes_something_is_refused_and_leaves_no_trace(what):
    cls, look, name = CHANGES[what]
    policy = extractor(cls)
    before, drawn = look(policy.features_extractor), generators()
    with pytest.raises(NotCompilable, match=name):
        export_policy(policy)
    assert look(policy.features_extractor) == before
    assert generators() == drawn


def test_what_a_closure_counts_is_put_back():
    forward, count = reaching.through_a_closure()
    with pytest.raises(NotCompilable, match="change `count` while they run"):
        export_policy(extractor(forward_of(forward)))
    assert count() == 0


@pytest.mark.parametrize("what", DRAWS_NUMBERS)
def test_a_forward_that_draws_is_refused(what):
    policy = extractor(extractor_of(drawing(DRAWS_NUMBERS[what]), source=SOURCES.get(what, int)))
    others = policy.features_extractor.source, reaching.DRAWS
    drawn = generators(*others)
    for _ in range(4):  # not by chance
        with pytest.raises(NotCompilable, match=r"draw random numbers|reads a number from a tensor"):
            export_policy(policy)
    assert generators(*others) == drawn


@pytest.mark.parametrize("what", ["random", "random of numpy", "torch", "generator of numpy"])
@pytest.mark.parametrize("seed", range(4))
def test_dropout_of_ones_own_is_no_update_whatever_is_drawn(what, seed):
    policy = extractor(extractor_of(drawing(DRAWS_NUMBERS[what], True), source=SOURCES.get(what, int)))
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    drawn = generators()
    network = export_policy(policy)  # it acts without
    with pytest.raises(NotCompilable, match="something else in training mode"):
        require_trainable(policy, network)
    assert generators() == drawn


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_cannot_be_looked_into_is_refused(what):
    read, source, message = UNKNOWN[what]
    policy = extractor(extractor_of(drawing(read), source=source))
    with pytest.raises(NotCompilable, match=message):
        export_policy(policy)
    with pytest.raises(NotCompilable, match=message):
        Snapshot(policy).require_whole()


def times(read):
    return lambda self, x: torch.tanh(self.linear(x)) * float(read(self))


def environment():
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.scale = 1.0
    return env


def imported():
    module = types.ModuleType("settings_of_a_user")
    module.scale = 1.0
    sys.modules["settings_of_a_user"] = module
    return module


def imports(self):
    import settings_of_a_user

    return settings_of_a_user.scale


READS = {
    "running statistics of SB3": (lambda self: self.source.mean, reaching.statistics, "mean", np.array(0.0)),
    "running statistics in place": (
        lambda self: self.source.mean,
        reaching.statistics,
        None,
        lambda source: source.mean.fill(0.0),
    ),
    "through wrappers": (
        lambda self: self.source.unwrapped.scale,
        environment,
        None,
        lambda source: setattr(source.unwrapped, "scale", 0.0),
    ),
    "by a method of a wrapper": (
        lambda self: self.source.get_wrapper_attr("scale"),
        environment,
        None,
        lambda source: setattr(source.unwrapped, "scale", 0.0),
    ),
    "rate of an optimizer": (
        lambda self: self.source.param_groups[0]["lr"],
        lambda: torch.optim.SGD([torch.zeros(1)], lr=1.0),
        None,
        lambda source: source.param_groups[0].update(lr=0.0),
    ),
    "method of a schedule of PyTorch": (
        lambda self: self.source.get_last_lr()[0],
        lambda: torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], lr=1.0), 1, 0.0),
        None,
        lambda source: setattr(source, "_last_lr", [0.0]),
    ),
    "computed names": (
        lambda self: getattr(self.source, "sc" + "ale"),
        lambda: types.SimpleNamespace(scale=1.0),
        "scale",
        0.0,
    ),
    "import within": (imports, imported, "scale", 0.0),
}


@pytest.mark.parametrize("what", READS)
def test_numbers_read_elsewhere_are_followed(what):
    read, source, name, value = READS[what]
    policy = extractor(extractor_of(times(read), source=source))
    source = policy.features_extractor.source
    export_policy(policy)
    snapshot = Snapshot(policy)
    snapshot.require_whole()
    assert snapshot.is_current()
    value(source) if name is None else setattr(source, name, value)
    assert not snapshot.is_current()


def test_a_module_in_a_plain_list_is_followed():
    policy = extractor(extractor_of(reaching.through_a_part, parts=lambda: [reaching.Gain()]))
    export_policy(policy)
    snapshot = Snapshot(policy)
    assert snapshot.is_current()
    policy.features_extractor.parts[0].gain = 0.0
    assert not snapshot.is_current()


def test_a_method_put_into_a_users_class_is_followed(monkeypatch):
    policy = extractor(extractor_of(times(lambda self: 1.0)))
    snapshot = Snapshot(policy)
    monkeypatch.setattr(type(policy.features_extractor), "forward", times(lambda self: 2.0))
    assert not snapshot.is_current()


class Annealed(BaseCallback):
    """Sets a number of the extractor to 0 in the middle of a training."""

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        reaching_scale = 1.0 if self.num_timesteps < 16 else 0.0
        self.model.policy.features_extractor.source.mean = np.array(reaching_scale)


def test_a_training_acts_with_statistics_of_now():
    cls = extractor_of(times(lambda self: self.source.mean), source=reaching.statistics)
    model = bridge.PPO(
        "MlpPolicy",
        bridge.make_vec_env("Acrobot-v1", 2, seed=0),
        n_steps=8,
        batch_size=16,
        n_epochs=1,
        policy_kwargs={"features_extractor_class": cls, "net_arch": [4]},
        learning_rate=0.0,
        seed=0,
        device="cpu",
    )
    model.learn(32, Annealed())
    assert model.plan.updates
    assert np.ptp(model.rollout_buffer.values) == 0


def test_a_training_remembers_what_sb3s_does():
    cls = CHANGES["dict"][0]
    env = bridge.make_vec_env("Acrobot-v1", 2, seed=0)
    for algorithm, settings in (
        (bridge.PPO, {"n_steps": 4, "batch_size": 8, "n_epochs": 1}),
        (bridge.DQN, {"learning_starts": 2, "buffer_size": 32, "batch_size": 4}),
    ):
        model = algorithm(
            "MlpPolicy",
            env,
            policy_kwargs={"features_extractor_class": cls, "net_arch": [4]},
            seed=0,
            device="cpu",
            **settings,
        )
        assert "change `seen`" in str(model.plan)
        model.learn(8)
        extractors = [part for part in model.policy.modules() if isinstance(part, cls)]
        assert any(each.seen for each in extractors)


class Plain(reaching.Base):
    """Holds much that its forward does not read."""

    def __init__(self, space):
        super().__init__(space)
        self.log, self.path, self.start = logging.getLogger(__name__), pathlib.Path("unused"), time.time()
        self.kinds = {"open": 1.0}

    def forward(self, x):
        scale = getattr(self, "scale", 1.0) * self.kinds["open"] * float(np.clip(1.0, 0.0, 1.0))
        return torch.tanh(self.linear(x)) * scale * math.sqrt(self._observation_space.shape[0])

    def report(self):
        print(time.time() - self.start, os.environ)
        self.log.info("unused")


def test_what_the_forward_does_not_read_is_no_reason():
    policy = extractor(Plain)
    require_trainable(policy, export_policy(policy))
    Snapshot(policy).require_whole()


def test_stock_policies_read_nothing():
    snapshot = Snapshot(make())
    snapshot.require_whole()
    assert not snapshot._readers
