"""Models and environments of the tests of what users do besides calling `learn`."""

import copy

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

import bridge
from bridge import JaxVecEnv
from jaxenvs import TimeLimit
from tests.bridge.small_models import Noop
from tests.environments import Counter

LIBRARIES = [stable_baselines3, bridge]
WHERE = ["JAX", "Gymnasium"]
SETTINGS = {"seed": 0, "device": "cpu", "policy_kwargs": {"net_arch": [8]}}
OFF_POLICY = {**SETTINGS, "learning_starts": 6, "buffer_size": 200, "batch_size": 8}
A2C = {**SETTINGS, "n_steps": 16}
PPO = {**A2C, "batch_size": 16, "n_epochs": 1}


class HostCounter(gymnasium.Env):
    """Counts its steps and ends after five."""

    def __init__(self, kind="box", dtype=np.float32):
        self.observation_space = spaces.Box(0, 100, (2,))
        self.action_space = spaces.Box(-1.0, 1.0, (2,), dtype) if kind == "box" else spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(2, self.count, np.float32), 1.0, self.count == 5, False, {}


def environments(where, kind="box"):
    return JaxVecEnv(TimeLimit(Counter(5, "box", kind), 7), 1, seed=0) if where == "JAX" else HostCounter(kind)


def make(cls, where="Gymnasium", env=None, **settings):
    is_off_policy = issubclass(cls, OffPolicyAlgorithm)
    kind = "box" if is_off_policy and not issubclass(cls, stable_baselines3.DQN) else "discrete"
    shared = OFF_POLICY if is_off_policy else PPO if issubclass(cls, stable_baselines3.PPO) else A2C
    return cls("MlpPolicy", environments(where, kind) if env is None else env, **copy.deepcopy({**shared, **settings}))


def vector(module):
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


class AtStep(Noop):
    """Calls a function with the model at some steps."""

    def __init__(self, steps, function):
        super().__init__()
        self.steps, self.function = steps, function

    def _on_step(self):
        if self.num_timesteps in self.steps:
            self.function(self.model)
        return True


def zero(*modules):
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.zero_()
