"""Parts of bridge.PPO and bridge.A2C that are not compiled are named, and train as in Stable-Baselines3."""

import logging

import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env as make_gym_vec_env
from stable_baselines3.common.vec_env import VecNormalize

import bridge
from bridge.errors import NotCompilable
from tests.bridge.algorithms.cases import weights
from tests.bridge.small_models import N_ENVS, N_STEPS, ROLLOUT, SETTINGS, OnRolloutEnd, make, make_env
from tests.environments import Counter


class OwnBuffer(RolloutBuffer):
    pass


class OwnWrapper(VecNormalize):
    """May do anything."""


OPTIMIZER = {"net_arch": [8], "optimizer_class": torch.optim.Adagrad}
COMPILED, SB3 = "compiled", "SB3's code"
ACTING = "acting compiled, environments stepped on the host"

# How to make the model; by what it collects and updates; and a part of the reason. docs/not-compiled.md has others.
FALLBACKS = {
    "wrapper": (lambda **k: make(OwnWrapper(make_env()), **k), ACTING, COMPILED, "OwnWrapper"),
    "optimizer": (lambda **k: make(policy_kwargs=OPTIMIZER, **k), COMPILED, SB3, "Adagrad"),
    "buffer": (lambda **k: make(rollout_buffer_class=OwnBuffer, **k), SB3, SB3, "OwnBuffer"),
}


@pytest.mark.parametrize("what", FALLBACKS)
def test_auto_falls_back_and_says_once_to_what_and_why_and_xla_raises(what, caplog):
    make_model, collects, updates, why = FALLBACKS[what]
    with caplog.at_level(logging.WARNING, logger="jaxenvs.sb3"):
        model = make_model()
        before = weights(model)
        model.learn(2 * ROLLOUT)
        model.learn(ROLLOUT)
    [record] = caplog.records
    assert f"collecting: {collects}\nupdating: {updates}\nnot compiled: " in record.getMessage()
    assert record.getMessage() == str(model.plan)
    assert why in record.getMessage()
    assert not np.array_equal(weights(model), before)
    with pytest.raises(NotCompilable, match=why):
        make_model(engine="xla").learn(ROLLOUT)


def test_xla_compiles_convolutions_on_a_cpu_too():
    env = bridge.JaxVecEnv(Counter(observation_kind="image"), 2)
    plan = bridge.A2C("CnnPolicy", env, n_steps=5, engine="xla", seed=0, device="cpu").plan
    assert (plan.collects, plan.updates) == (True, True)


def test_torch_compiles_nothing():
    model = make(engine="torch")
    assert str(model.plan).startswith(f"collecting: {SB3}\nupdating: {SB3}")
    model.learn(2 * ROLLOUT)
    assert model._n_updates == 2 * SETTINGS["n_epochs"]


def test_environments_on_the_host_are_told_as_information(caplog):
    with caplog.at_level(logging.INFO, logger="jaxenvs.sb3"):
        make(make_gym_vec_env("CartPole-v1", N_ENVS)).learn(ROLLOUT)
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == ("INFO", f"collecting: {ACTING}\nupdating: {COMPILED}")


@pytest.mark.thorough
def test_a_callback_may_change_the_optimizer():
    def change(model):
        model.policy.optimizer = torch.optim.RMSprop(model.policy.parameters(), lr=0.01)

    model = make(engine="xla").learn(ROLLOUT, callback=OnRolloutEnd(change))
    assert model.policy.optimizer.state[model.policy.action_net.weight]["square_avg"].any()


def test_a_callback_may_freeze_weights(caplog):
    def freeze(model):
        model.policy.value_net.weight.requires_grad_(False)

    model = make()
    before = [parameter.detach().clone() for parameter in model.policy.value_net.parameters()]
    with caplog.at_level(logging.WARNING, logger="jaxenvs.sb3"):
        model.learn(2 * ROLLOUT, callback=OnRolloutEnd(freeze))
    assert "value_net.weight is frozen" in caplog.text
    changed = [not torch.equal(new, old) for new, old in zip(model.policy.value_net.parameters(), before)]
    assert changed == [False, True]


def test_an_engine_that_is_set_later_is_checked_too():
    model = make()
    model.engine = "jax"
    with pytest.raises(ValueError, match="got 'jax'"):
        model.learn(ROLLOUT)


def test_a_subclass_keeps_its_own_train():
    class OwnTrain(bridge.PPO):
        def train(self):
            self.seen = self.rollout_buffer.observations.copy(), self.rollout_buffer.full
            super().train()

    model = OwnTrain("MlpPolicy", make_env(), **SETTINGS).learn(ROLLOUT)
    assert model.seen[0].shape == (N_STEPS, N_ENVS, 4)
    assert model.seen[0].any()
    assert model.seen[1]
    assert model._n_updates == SETTINGS["n_epochs"]
