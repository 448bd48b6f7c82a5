"""Translation of the networks of SB3's off-policy policies, and the table of these policies."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution, StateDependentNoiseDistribution
from stable_baselines3.common.policies import BaseModel, BasePolicy, ContinuousCritic
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, SACPolicy
from stable_baselines3.sac.policies import Actor as SACActor
from stable_baselines3.td3.policies import Actor as TD3Actor
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.policies import exported_network
from bridge.translate.policies.exported_network import Encoded, Encodings, Exploration, ExportedNetwork
from bridge.translate.policies.off_policy_networks import (
    ExportedCritic,
    ExportedDQNPolicy,
    ExportedOffPolicy,
    ExportedQNetwork,
    ExportedSACActor,
    ExportedSACPolicy,
    ExportedTD3Actor,
    ExportedTD3Policy,
)
from bridge.translate.pytorch.modules import ExportedModule
from jaxenvs.learn.networks.actor_critic import ActionHead
from jaxenvs.learn.networks.distributions import SquashedGaussian

# Methods that are translated by hand. A class that overrides one has no translation.
Q_NETWORK = ("forward", "_predict", "extract_features")
SAC_ACTOR = ("forward", "_predict", "extract_features", "get_action_dist_params", "action_log_prob", "reset_noise")
TD3_ACTOR = ("forward", "_predict", "extract_features")
CRITIC = ("forward", "q1_forward", "extract_features")

Exported = TypeVar("Exported", bound=ExportedNetwork)
# The fields of an ExportedNetwork.
Fields = tuple[Encodings, ExportedModule, ActionHead]


@dataclasses.dataclass(frozen=True)
class Translation:
    """Description of how the policies of one class are translated.

    Attributes:
      policy: the class.
      exported: the class of the translation, from the translated networks and the head.
      networks: functions that translate the networks that learn, by their names; the network that acts is first.
      targets: names of the target networks, such as "critic_target".
    """

    policy: type[BasePolicy]
    exported: Callable[..., ExportedOffPolicy]
    networks: Mapping[str, Callable[[Any], Any]]
    targets: tuple[str, ...] = ()


def q_network(network: QNetwork) -> ExportedQNetwork:
    """Translate a Q-network."""
    exported_network.require_methods(network, QNetwork, Q_NETWORK)
    fields = with_head(network, chained("q_net"), "discrete")
    return checked(ExportedQNetwork(*fields), network, 2, fields[-1].size)


def sac_actor(actor: Any, base: type[nn.Module] = SACActor) -> ExportedSACActor:
    """Translate an actor such as SAC's, with the methods of the class `base`."""
    exported_network.require_methods(actor, base, SAC_ACTOR)
    fields = with_head(actor, _actor_numbers, "box")
    return checked(ExportedSACActor(*fields, _exploration(actor)), actor, 2, fields[-1].size)


def td3_actor(actor: TD3Actor) -> ExportedTD3Actor:
    """Translate an actor such as TD3's."""
    exported_network.require_methods(actor, TD3Actor, TD3_ACTOR)
    fields = with_head(actor, chained("mu"), "box")
    return checked(ExportedTD3Actor(*fields), actor, 2, fields[-1].size)


def critic_of(critic: ContinuousCritic) -> ExportedCritic:
    """Translate critics such as SAC's."""
    exported_network.require_methods(critic, ContinuousCritic, CRITIC)
    return checked(ExportedCritic(*critic_fields(critic)), critic, critic.n_critics, 2)


def with_head(network: BaseModel, compute: Callable[..., object], kind: str, *further: int) -> Fields:
    """Return the fields of an exported network whose actions must be "discrete" or of a "box".

    Args:
      network, compute, further: as in `export_view`.
      kind: of the head.
    """
    head = exported_network.export_head(network.action_space)
    if head.kind != kind:
        raise NotCompilable(f"A {type(network).__name__} needs a {kind} action space, got {network.action_space}.")
    return *exported_network.export_view(network, compute, *further), head


def critic_fields(critic: Any) -> tuple[*Fields, int, bool]:
    """Return the fields of an ExportedCritic."""
    if [*critic.q_networks] != [getattr(critic, f"qf{index}", None) for index in range(critic.n_critics)]:
        raise NotCompilable(
            f"The {critic.n_critics} q_networks of the critic must be its attributes qf0, qf1 and so on."
        )
    fields = with_head(critic, _critic_values, "box", get_action_dim(critic.action_space))
    return *fields, critic.n_critics, critic.share_features_extractor


def _exploration(actor: SACActor) -> Exploration | None:
    kind: type = StateDependentNoiseDistribution if actor.use_sde else SquashedDiagGaussianDistribution
    found = type(actor.action_dist)
    if found is not kind:
        raise NotCompilable(f"action_dist must be a {kind.__name__}, got a {found.__name__}.")
    if not actor.use_sde:
        if actor.action_dist.epsilon != SquashedGaussian.epsilon:
            raise NotCompilable(f"action_dist.epsilon must be SB3's, got {actor.action_dist.epsilon}.")
        return None
    return exported_network.export_exploration(actor.action_dist, squash=True, learn_features=True)


def checked(exported: Exported, network: BaseModel, *shape: int) -> Exported:
    """Return the network, if its results for a batch of two have the shape that the algorithms take."""
    _require_shape(exported, shape, next(network.parameters()).dtype)
    return exported


@functools.lru_cache(maxsize=64)
def _require_shape(network: Any, expected: tuple[int, ...], dtype: torch.dtype) -> None:
    def apply(*inputs: object) -> object:
        given = network.apply(*inputs)
        return given.mode() if isinstance(network, ExportedSACActor) else given

    size = network.head.size
    (shape,) = exported_network.shapes_given(network, apply, dtype, *[size] * isinstance(network, ExportedCritic))
    if shape != expected:
        raise NotCompilable(
            f"For a batch of two observations, with actions of {size} numbers, a network returned the shape {shape}, "
            f"expected {expected}."
        )


def chained(part: str) -> Callable[[Any, Encoded], object]:
    """Return a function that applies a part of a network to its features."""
    return lambda network, x: getattr(network, part)(network.features_extractor(x))


def _actor_numbers(actor: Any, x: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    latent = actor.latent_pi(actor.features_extractor(x))
    if actor.use_sde:
        return actor.mu(latent), latent
    return actor.mu(latent), torch.clamp(actor.log_std(latent), LOG_STD_MIN, LOG_STD_MAX)


def _critic_values(critic: ContinuousCritic, x: Encoded, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.set_grad_enabled(not critic.share_features_extractor):
        features = critic.features_extractor(x)
    inputs = torch.cat([features, action], dim=1)
    return tuple(getattr(critic, f"qf{index}")(inputs) for index in range(critic.n_critics))


TRANSLATIONS = (
    Translation(DQNPolicy, ExportedDQNPolicy, {"q_net": q_network}, ("q_net_target",)),
    Translation(SACPolicy, ExportedSACPolicy, {"actor": sac_actor, "critic": critic_of}, ("critic_target",)),
    Translation(
        TD3Policy, ExportedTD3Policy, {"actor": td3_actor, "critic": critic_of}, ("actor_target", "critic_target")
    ),
)
