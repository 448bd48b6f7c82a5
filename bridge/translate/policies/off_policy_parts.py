"""Translation of the networks of SB3's off-policy policies, one by one."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import torch
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution, StateDependentNoiseDistribution
from stable_baselines3.common.policies import BaseModel, ContinuousCritic
from stable_baselines3.dqn.policies import QNetwork
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN
from stable_baselines3.sac.policies import Actor as SACActor
from stable_baselines3.td3.policies import Actor as TD3Actor
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.policies.exported_network import (
    Encoded,
    Exploration,
    ExportedNetwork,
    Parts,
    export_exploration,
    export_head,
    export_parts,
    require_methods,
    shapes_given,
)
from bridge.translate.policies.off_policy_networks import (
    ExportedCritic,
    ExportedQNetwork,
    ExportedSACActor,
    ExportedTD3Actor,
)
from jaxenvs.learn.networks.actor_critic import ActionHead

# Methods that are translated by hand. A class that overrides one has no translation.
Q_NETWORK = ("forward", "_predict", "extract_features")
SAC_ACTOR = ("forward", "_predict", "extract_features", "get_action_dist_params", "action_log_prob", "reset_noise")
TD3_ACTOR = ("forward", "_predict", "extract_features")
CRITIC = ("forward", "q1_forward", "extract_features")

Exported = TypeVar("Exported", bound=ExportedNetwork)


def q_network(network: QNetwork) -> ExportedQNetwork:
    require_methods(network, QNetwork, Q_NETWORK)
    return checked(ExportedQNetwork(*export_parts(network, _QNetwork(network)), head_of(network, "discrete")), network)


def sac_actor(
    actor: Any, base: type[nn.Module] = SACActor, exported: type[ExportedSACActor] = ExportedSACActor
) -> ExportedSACActor:
    """Translate an actor such as SAC's.

    Args:
      base: the class whose methods are translated; exported: the class of the result.
    """
    require_methods(actor, base, SAC_ACTOR)
    parts = export_parts(actor, _SACActor(actor), has_statistics=exported.has_statistics)
    return checked(exported(*parts, head_of(actor, "box"), _exploration(actor)), actor)


def td3_actor(actor: TD3Actor) -> ExportedTD3Actor:
    require_methods(actor, TD3Actor, TD3_ACTOR)
    return checked(ExportedTD3Actor(*export_parts(actor, _TD3Actor(actor)), head_of(actor, "box")), actor)


def critic_of(critic: ContinuousCritic) -> ExportedCritic:
    require_methods(critic, ContinuousCritic, CRITIC)
    return checked(ExportedCritic(*critic_parts(critic)), critic)


def critic_parts(critic: Any, has_statistics: bool = False) -> tuple[Any, Any, ActionHead, int, bool]:
    """Return the fields of an ExportedCritic."""
    if [*critic.q_networks] != [getattr(critic, f"qf{index}", None) for index in range(critic.n_critics)]:
        raise NotCompilable(
            f"The {critic.n_critics} q_networks of the critic must be its attributes qf0, qf1 and so on."
        )
    head, shares = head_of(critic, "box"), critic.share_features_extractor
    encoding, module = export_parts(critic, _Critic(critic), head.size, has_statistics=has_statistics)
    return encoding, module, head, critic.n_critics, shares


def head_of(network: BaseModel, kind: str) -> ActionHead:
    """Return the head of a network whose actions must be "discrete" or of a "box"."""
    head = export_head(network.action_space)
    if head.kind != kind:
        raise NotCompilable(f"A {type(network).__name__} needs a {kind} action space, got {network.action_space}.")
    return head


def _exploration(actor: Any) -> Exploration | None:
    kind: type = StateDependentNoiseDistribution if actor.use_sde else SquashedDiagGaussianDistribution
    found = type(actor.action_dist)
    if found is not kind:
        raise NotCompilable(f"action_dist must be a {kind.__name__}, got a {found.__name__}.")
    return export_exploration(actor.action_dist, squash=True, learn_features=True) if actor.use_sde else None


def checked(exported: Exported, network: BaseModel) -> Exported:
    """Return the network, if its results are what the algorithms take.

    Raises:
      NotCompilable: they are not.
    """
    _require_shape(exported, str(next(network.parameters()).dtype).removeprefix("torch."))
    return exported


@functools.lru_cache(maxsize=64)
def _require_shape(network: Any, dtype: str) -> None:
    def apply(*inputs: Any) -> Any:
        given = network.apply(*inputs)
        return given.mode() if isinstance(network, ExportedSACActor) else given

    size = network.head.size
    (shape,) = shapes_given(network, apply, dtype, *[size] * isinstance(network, ExportedCritic))
    if shape != network.shape(2):
        raise NotCompilable(
            f"For a batch of two observations, with actions of {size} numbers, a network returned the shape {shape}, "
            f"expected {network.shape(2)}."
        )


class _QNetwork(Parts):
    features_extractor: nn.Module
    q_net: nn.Module

    def forward(self, x: Encoded) -> object:
        return self.q_net(self.features_extractor(x))


class _SACActor(Parts):
    features_extractor: nn.Module
    latent_pi: nn.Module
    mu: nn.Module
    log_std: Any

    def __init__(self, actor: Any) -> None:
        super().__init__(actor)
        self.use_sde = actor.use_sde

    def forward(self, x: Encoded) -> object:
        latent = self.latent_pi(self.features_extractor(x))
        if self.use_sde:
            return self.mu(latent), latent
        return self.mu(latent), torch.clamp(self.log_std(latent), LOG_STD_MIN, LOG_STD_MAX)


class _TD3Actor(Parts):
    features_extractor: nn.Module
    mu: nn.Module

    def forward(self, x: Encoded) -> object:
        return self.mu(self.features_extractor(x))


class _Critic(Parts):
    features_extractor: nn.Module

    def __init__(self, critic: Any) -> None:
        super().__init__(critic)
        self.n_critics, self.share_features_extractor = critic.n_critics, critic.share_features_extractor

    def forward(self, x: Encoded, action: torch.Tensor) -> object:
        with torch.set_grad_enabled(not self.share_features_extractor):
            features = self.features_extractor(x)
        inputs = torch.cat([features, action], dim=1)
        return tuple(getattr(self, f"qf{index}")(inputs) for index in range(self.n_critics))
