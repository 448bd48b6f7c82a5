"""Policies of off-policy algorithms of many kinds, and what they give in PyTorch."""

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.crossq.policies import CrossQPolicy
from sb3_contrib.qrdqn.policies import QRDQNPolicy
from sb3_contrib.tqc.policies import TQCPolicy
from stable_baselines3.common import policies
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from bridge.translate.policies.off_policy import own_parameters
from tests.bridge.translate.policies import networks
from tests.bridge.translate.policies.networks import (
    BATCH,
    DICT,
    IMAGE,
    PAIR,
    SMALL_IMAGE,
    VECTOR,
    Extractor,
    ResidualCNN,
)

NATURE = {"features_extractor_class": policies.NatureCNN, "features_extractor_kwargs": {"features_dim": 8}}
COMBINED = {"features_extractor_class": policies.CombinedExtractor, "features_extractor_kwargs": {"cnn_output_dim": 8}}
MATRIX = spaces.Box(np.array([[-1.0, -2.0]], np.float32), np.array([[2.0, 5.0]], np.float32))


def make(cls=SACPolicy, observation=VECTOR, action=None, net_arch=(8,), **settings):
    """A policy as `networks.make` returns it, with other targets and other running statistics too."""
    action = action or (spaces.Discrete(3) if issubclass(cls, (DQNPolicy, QRDQNPolicy)) else PAIR)
    net_arch = net_arch if isinstance(net_arch, dict) else list(net_arch)
    policy = networks.make(observation, action, cls, net_arch=net_arch, **settings)
    for buffer in policy.buffers():  # running statistics of CrossQ
        if buffer.is_floating_point():
            buffer.add_(0.5 * torch.rand(buffer.shape))
    return policy


POLICIES = {
    "dqn": lambda: make(DQNPolicy),
    "dqn without hidden layers": lambda: make(DQNPolicy, net_arch=(), activation_fn=nn.Tanh),
    "dqn on discrete": lambda: make(DQNPolicy, spaces.Discrete(4)),
    "dqn on images": lambda: make(DQNPolicy, IMAGE, **NATURE),
    "dqn on a dict": lambda: make(DQNPolicy, DICT, **COMBINED),
    "qrdqn": lambda: make(QRDQNPolicy, n_quantiles=5),
    "qrdqn on a dict": lambda: make(QRDQNPolicy, DICT, n_quantiles=5, **COMBINED),
    "sac": lambda: make(),
    "sac of other depths": lambda: make(net_arch={"pi": [5, 6], "qf": [7]}, n_critics=3, activation_fn=nn.Tanh),
    "sac on a dict": lambda: make(observation=DICT, **COMBINED),
    "sac on discrete": lambda: make(observation=spaces.MultiDiscrete([2, 3]), action=MATRIX),
    "sac with a shared extractor": lambda: make(features_extractor_class=Extractor, share_features_extractor=True),
    "sac on images as they are": lambda: make(
        observation=SMALL_IMAGE, features_extractor_class=ResidualCNN, normalize_images=False
    ),
    "gsde": lambda: make(use_sde=True),
    "gsde with a shared extractor": lambda: make(
        use_sde=True, use_expln=True, clip_mean=0.0, log_std_init=0.1, features_extractor_class=Extractor,
        share_features_extractor=True,
    ),
    "tqc": lambda: make(TQCPolicy, n_quantiles=5),
    "tqc with a shared extractor": lambda: make(
        TQCPolicy, n_quantiles=5, features_extractor_class=Extractor, share_features_extractor=True
    ),
    "tqc on a dict": lambda: make(TQCPolicy, DICT, n_quantiles=5, **COMBINED),
    "crossq": lambda: make(CrossQPolicy),
    "crossq with a shared extractor": lambda: make(
        CrossQPolicy, features_extractor_class=Extractor, share_features_extractor=True
    ),
    "crossq on a dict": lambda: make(CrossQPolicy, DICT, **COMBINED),
    "td3": lambda: make(TD3Policy),
    "td3 of one critic": lambda: make(TD3Policy, action=MATRIX, n_critics=1),
    "td3 with a shared extractor": lambda: make(
        TD3Policy, features_extractor_class=Extractor, share_features_extractor=True
    ),
}  # fmt: skip


def standard_normal(policy):
    """Numbers instead of PyTorch's draws for a batch, or for a matrix of state-dependent exploration."""
    size = int(np.prod(policy.action_space.shape))
    rows = policy.actor.log_std.shape[0] if policy.actor.use_sde else BATCH
    return np.random.default_rng(1).normal(size=(rows, size)).astype(np.float32)


def results_in_torch(policy, observation, action, monkeypatch):
    """Values, actions and gradients of losses like those of the algorithms, as `tests...test_off_policy.results`."""
    observation = policies.obs_as_tensor(observation, torch.device("cpu"))
    weights = torch.linspace(1, 2, BATCH)
    policy.set_training_mode(False)
    if hasattr(policy, "optimizer"):
        network = policy.q_net if isinstance(policy, DQNPolicy) else policy.quantile_net
        values = network(observation)
        gradients = gradient(network, (weights @ (values**2).flatten(1)).sum())
        return numbers({"values": values, "network": gradients})
    values = critics(policy, observation, torch.as_tensor(action))
    results = {"values": values, "critic": gradient(policy.critic, (values**2 @ weights).sum())}
    if isinstance(policy, TD3Policy):
        actions = policy.actor(observation)
        loss = -(policy.critic.q1_forward(observation, actions).flatten() @ weights)
    else:
        noise = torch.as_tensor(standard_normal(policy))
        monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda shape, **_: noise.expand(shape))
        if policy.actor.use_sde:
            policy.reset_noise()
        actions, log_prob = policy.actor.action_log_prob(observation)
        least = critics(policy, observation, actions).reshape(-1, BATCH).min(dim=0).values
        loss = (0.3 * log_prob - least) @ weights
        results["log_prob"] = log_prob
    return numbers({**results, "actions": actions, "actor": gradient(policy.actor, loss)})


def critics(policy, observation, actions):
    """(n_critics, batch), of TQC (n_critics, n_quantiles, batch)."""
    given = policy.critic(observation, actions)
    return given.permute(1, 2, 0) if isinstance(policy, TQCPolicy) else torch.cat(given, dim=1).T


def gradient(network, loss):
    parts = torch.autograd.grad(loss, own_parameters(network), retain_graph=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def numbers(results):
    return {name: part.detach().numpy() for name, part in results.items()}
