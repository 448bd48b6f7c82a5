"""Methods that were put into a class of SB3's or of bridge's run, as they do with SB3."""

import types

import numpy as np
import pytest
import stable_baselines3
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.sac.policies import Actor
from torch import nn

import bridge
from bridge.engine.user_code.overrides import is_ours, names_of_user_code
from tests.environments import Counter

ON_POLICY = {"n_steps": 4, "batch_size": 8, "n_epochs": 1}
OFF_POLICY = {"learning_starts": 4, "buffer_size": 32, "batch_size": 4, "train_freq": 2}


def model_of(algorithm, normalizes=False, **settings):
    is_on_policy = issubclass(algorithm, OnPolicyAlgorithm)
    env = bridge.JaxVecEnv(Counter(action_kind="discrete" if algorithm is bridge.DQN else "box"), 2)
    return algorithm(
        "MlpPolicy",
        VecNormalize(env) if normalizes else env,
        policy_kwargs={"net_arch": [4]},
        seed=0,
        device="cpu",
        **{**(ON_POLICY if is_on_policy else OFF_POLICY), **settings},
    )


def counted(monkeypatch, cls, name):
    """Put a method into a class that counts its calls and does what the one before does."""
    calls, before = [], getattr(cls, name)

    def mine(self, *args, **kwargs):
        calls.append(name)
        return before(self, *args, **kwargs)

    monkeypatch.setattr(cls, name, mine)
    return calls


METHODS = [
    (bridge.PPO, bridge.PPO, "train"),
    (bridge.PPO, bridge.PPO, "collect_rollouts"),
    (bridge.PPO, stable_baselines3.PPO, "train"),
    (bridge.PPO, OnPolicyAlgorithm, "collect_rollouts"),
    (bridge.SAC, bridge.SAC, "train"),
    (bridge.SAC, stable_baselines3.SAC, "train"),
    (bridge.SAC, OffPolicyAlgorithm, "_store_transition"),
    (bridge.SAC, OffPolicyAlgorithm, "_sample_action"),
    (bridge.DQN, stable_baselines3.DQN, "_on_step"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("algorithm", "cls", "name"), METHODS)
def test_a_method_put_into_a_class_runs(algorithm, cls, name, monkeypatch):
    model = model_of(algorithm)
    assert model.plan.collects
    assert model.plan.updates
    model.learn(16)
    calls = counted(monkeypatch, cls, name)
    assert not is_ours(algorithm)
    model.learn(16)
    assert calls
    monkeypatch.undo()
    assert model.plan.updates
    assert is_ours(algorithm)


OBJECTS = {
    "buffer": (bridge.ReplayBuffer, "add", lambda: model_of(bridge.SAC), ("replay_buffer",)),
    "wrapper": (VecNormalize, "normalize_obs", lambda: model_of(bridge.PPO, normalizes=True), ("VecNormalize",)),
    "logger": (Logger, "record", lambda: logged(model_of(bridge.PPO)), ("logger",)),
    "noise": (
        NormalActionNoise,
        "__call__",
        lambda: model_of(bridge.SAC, action_noise=NormalActionNoise(np.zeros(1), np.ones(1))),
        ("action_noise",),
    ),
}


def logged(model):
    model.learn(8)
    return model


@pytest.mark.parametrize("kind", OBJECTS)
def test_classes_of_what_a_training_calls_are_looked_at_too(kind, monkeypatch):
    cls, name, make, expected = OBJECTS[kind]
    model = make()
    assert names_of_user_code(model, model.env) == ()
    counted(monkeypatch, cls, name)
    assert names_of_user_code(model, model.env) == expected
    assert not model.plan.is_current(model, None)


def test_of_a_rollout_buffer(monkeypatch):
    model = model_of(bridge.PPO)
    assert model.plan.updates
    calls = counted(monkeypatch, RolloutBuffer, "get")
    model.learn(8)
    assert calls
    assert "rollout buffer" in str(model.plan)


POLICIES = [
    (bridge.PPO, ActorCriticPolicy, "forward"),
    (bridge.PPO, ActorCriticPolicy, "predict_values"),
    (bridge.PPO, ActorCriticPolicy, "evaluate_actions"),
    (bridge.PPO, nn.Linear, "forward"),
    (bridge.PPO, nn.Module, "__call__"),
    (bridge.PPO, stable_baselines3.common.distributions.DiagGaussianDistribution, "log_prob"),
    (bridge.SAC, Actor, "action_log_prob"),
    (bridge.SAC, BasePolicy, "predict"),
]


@pytest.mark.parametrize(("algorithm", "cls", "name"), POLICIES)
def test_a_method_put_into_a_class_of_a_policy_leaves_it_to_sb3(algorithm, cls, name, monkeypatch):
    model = model_of(algorithm)
    assert model.plan.updates
    counted(monkeypatch, cls, name)
    assert not model.plan.updates
    assert name in str(model.plan)
    monkeypatch.undo()
    assert model.plan.updates


@pytest.mark.parametrize("module", ["torch._dynamo.mutation_guard", "torch._dynamo.eval_frame"])
def test_marks_of_torch_compile_are_no_replaced_method(module, monkeypatch):
    """Once used, it leaves a method of the first module in nn.Module. Users' code that it compiles is of the second."""
    model, before = model_of(bridge.PPO), nn.Module.__init__
    marking = types.FunctionType(
        before.__code__, {**before.__globals__, "__name__": module}, closure=before.__closure__
    )
    monkeypatch.setattr(nn.Module, "__init__", marking)
    assert model.plan.updates == (module == "torch._dynamo.mutation_guard")
    monkeypatch.setattr(nn.Module, "__init__", before)
    assert model.plan.updates
    monkeypatch.setattr(nn.Module, "__init__", lambda self: before(self))
    assert not model.plan.updates


def test_a_method_of_a_new_name_changes_nothing(monkeypatch):
    model = model_of(bridge.PPO)
    plan = model.plan
    monkeypatch.setattr(bridge.PPO, "describe", lambda self: "mine", raising=False)
    assert model.plan is plan
    assert names_of_user_code(model, model.env) == ()


def test_stock_classes_have_the_methods_that_they_came_with():
    assert names_of_user_code(model_of(bridge.SAC), None) == ()
    assert is_ours(bridge.TQC)
    assert is_ours(bridge.MaskablePPO)
