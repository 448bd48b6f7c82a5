"""Small models of sb3-contrib's algorithms, for its tests."""

import copy

from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.envs import IdentityEnvBox
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

import bridge
from bridge.algorithms.specs import SPECS

SHARED = {"seed": 0, "device": "cpu"}
ON_POLICY = SHARED | {"n_steps": 32, "batch_size": 32, "n_epochs": 2}
OFF_POLICY = SHARED | {"buffer_size": 500, "learning_starts": 20, "batch_size": 16, "train_freq": 4}
NETWORKS = {
    "MaskablePPO": {"net_arch": [8]},
    "RecurrentPPO": {"net_arch": [], "lstm_hidden_size": 8},
    "MaskableRecurrentPPO": {"net_arch": [], "lstm_hidden_size": 8},
    "QRDQN": {"net_arch": [8], "n_quantiles": 10},
    "TQC": {"net_arch": [8], "n_quantiles": 10},
    "CrossQ": {"net_arch": [8]},
}


def make(name, env, policy="Mlp", package=bridge, policy_kwargs=None, **settings):
    spec = SPECS[name]
    given = (OFF_POLICY if spec.is_off_policy else ON_POLICY) | settings
    # SB3 writes into policy_kwargs.
    given["policy_kwargs"] = copy.deepcopy(NETWORKS[name] | (policy_kwargs or {}))
    return getattr(package, name)(f"{policy}{spec.policy_kind}Policy", env, **given)


def env_of(name):
    return InvalidActionEnvDiscrete(6, n_invalid_actions=2) if SPECS[name].actions != "Box" else IdentityEnvBox(-10, 10)


def in_dict(env):
    space = spaces.Dict({"obs": env.observation_space})
    return TransformObservation(env, lambda observation: {"obs": observation}, space)


class TwoModes(BaseFeaturesExtractor):
    """Normalises by batches and drops out, in training alone."""

    def __init__(self, space):
        super().__init__(space, spaces.flatdim(space))
        self.layers = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(self.features_dim), nn.Dropout(0.5))

    def forward(self, observations):
        return self.layers(observations)
