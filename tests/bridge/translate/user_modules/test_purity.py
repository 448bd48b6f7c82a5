"""A function is compiled if it is known to be pure. Otherwise Python runs it, and a line is named."""

import logging
import math
import os
import pathlib
import random
import time
import types

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd

import bridge
from bridge.translate.policies.on_policy import export_policy, require_trainable
from bridge.translate.user_modules.snapshot import Snapshot
from tests.bridge.translate.policies.networks import extractor, forward_of, make
from tests.bridge.translate.user_modules import impure
from tests.bridge.translate.user_modules.impure import (
    CHANGES,
    DRAWS_NUMBERS,
    SOURCES,
    UNKNOWN,
    assert_refused,
    drawing,
    extractor_of,
)


def generators(*others):
    states = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002
    states += [str(each.bit_generator.state) for each in others if isinstance(each, np.random.Generator)]
    return [*states, *(each.getstate() for each in others if isinstance(each, random.Random))]


@pytest.mark.parametrize("what", CHANGES)
def test_a_forward_that_changes_something_is_refused_and_not_run(what):
    cls, look, line = CHANGES[what]
    policy = extractor(cls)
    before, drawn = look(policy.features_extractor), generators()
    assert_refused(policy, line)
    assert look(policy.features_extractor) == before
    assert generators() == drawn


def test_a_forward_that_counts_in_a_closure_is_refused():
    forward, count = impure.through_a_closure()
    assert_refused(extractor(forward_of(forward)), "nonlocal count")
    assert count() == 0


@pytest.mark.parametrize("only_in_training", [False, True])
@pytest.mark.parametrize("what", DRAWS_NUMBERS)
def test_a_forward_that_draws_is_refused(what, only_in_training):
    cls = extractor_of(drawing(DRAWS_NUMBERS[what], only_in_training), source=SOURCES.get(what, int))
    policy = extractor(cls)
    others = policy.features_extractor.source, impure.DRAWS
    drawn = generators(*others)
    assert_refused(policy, "ra?nd")
    assert generators(*others) == drawn


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_not_listed_is_refused(what):
    read, source, line = UNKNOWN[what]
    assert_refused(extractor(extractor_of(drawing(read), source=source)), line)


# --- What stopped compiling, and trains as in SB3 ---------------------------------------------------------------------


def times(read):
    return lambda self, x: torch.tanh(self.linear(x)) * float(read(self))


def environment():
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.scale = 1.0
    return env


def sgd():
    return torch.optim.SGD([torch.zeros(1)], lr=1.0)


NO_LONGER = {
    "running statistics of SB3": (lambda self: self.source.mean, lambda: RunningMeanStd(shape=())),
    "through wrappers": (lambda self: self.source.unwrapped.scale, environment),
    "by a method of a wrapper": (lambda self: self.source.get_wrapper_attr("scale"), environment),
    "rate of an optimizer": (lambda self: self.source.param_groups[0]["lr"], sgd),
    "method of a schedule of PyTorch": (
        lambda self: self.source.get_last_lr()[0],
        lambda: torch.optim.lr_scheduler.StepLR(sgd(), 1, 0.0),
    ),
    "a container in a container": (lambda self: self.source["a"]["b"], lambda: {"a": {"b": 1.0}}),
    "an object in a container": (lambda self: self.source[0].scale, lambda: [types.SimpleNamespace(scale=1.0)]),
}


@pytest.mark.parametrize("what", NO_LONGER)
def test_numbers_deep_inside_of_other_objects_are_left_to_python(what):
    read, source = NO_LONGER[what]
    assert_refused(extractor(extractor_of(times(read), source=source)), "self.source|CartPoleEnv")


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
        assert "`self.seen['features']`, stores" in str(model.plan)
        model.learn(8)
        extractors = [part for part in model.policy.modules() if isinstance(part, cls)]
        assert any(each.seen for each in extractors)


class Plain(impure.Base):
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
    Snapshot(policy).require_pure()


def test_a_method_put_into_a_users_class_is_followed(monkeypatch):
    policy = extractor(extractor_of(times(lambda self: 1.0)))
    snapshot = Snapshot(policy)
    monkeypatch.setattr(type(policy.features_extractor), "forward", times(lambda self: 2.0))
    assert not snapshot.is_current()


def test_stock_policies_read_nothing():
    snapshot = Snapshot(make())
    snapshot.require_pure()
    assert not snapshot._purity.reads._reads
    assert not snapshot._purity.reads._contents
