"""Table of the translations of SB3's off-policy policies, a Kind for each class, and the checks that all share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from stable_baselines3.common.policies import BaseModel, BasePolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.policies.exported_network import ExportedNetwork
from bridge.translate.policies.off_policy_networks import (
    EXTRACTOR,
    ExportedCritic,
    ExportedDQNPolicy,
    ExportedSACActor,
    ExportedSACPolicy,
    ExportedTD3Policy,
)
from bridge.translate.policies.off_policy_parts import critic_of, q_network, sac_actor, td3_actor
from bridge.translate.pytorch.modules import require_same_gradients

Tensors = dict[str, list[torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Description of how the policies of one class are translated.

    Attributes:
      policy: the class.
      networks: names of the networks that learn, the one that acts first; targets: names of the target networks.
      actor: translates the network that acts.
      whole: returns everything that a policy learns, from the policy and its translated actor.
      statistics: returns the tensors of a network's running statistics, by the ends of their names.
    """

    policy: type[BasePolicy]
    networks: tuple[str, ...]
    targets: tuple[str, ...]
    actor: Callable[[Any], Any]
    whole: Callable[[Any, Any], Any]
    statistics: Callable[[nn.Module], Tensors] = lambda network: {}


def q_learning(
    name: str, make: Callable[[Any], ExportedNetwork], exported: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """Return the `whole` of a policy that learns one network.

    Args:
      name: of the network. Its target is named NAME_target.
      make: translates the network; exported: makes the translated policy.
    """

    def whole(policy: Any, actor: Any) -> Any:
        network, target = getattr(policy, name), getattr(policy, f"{name}_target")
        _require_equal(f"{name}_target", make(target), actor)
        _require_trainable(network, actor, policy.optimizer)
        _require_apart(network.parameters(), target.parameters())
        return exported(actor, actor.head)

    return whole


def export_actor_critic(policy: Any, actor: Any, make_critic: Callable[[Any], ExportedCritic]) -> ExportedCritic:
    """Return the translated critic of a policy, which learns beside its actor."""
    critic = make_critic(policy.critic)
    _require_trainable(policy.actor, actor, policy.actor.optimizer)
    _require_trainable(policy.critic, critic, policy.critic.optimizer)
    _require_sharing(policy.actor, policy.critic, critic.shares)
    return critic


def soft_actor_critic(make_critic: Callable[[Any], ExportedCritic]) -> Callable[[Any, Any], ExportedSACPolicy]:
    """Return the `whole` of a policy such as SAC's, whose critics `make_critic` translates."""

    def whole(policy: Any, actor: Any) -> ExportedSACPolicy:
        critic = export_actor_critic(policy, actor, make_critic)
        _require_equal("critic_target", make_critic(policy.critic_target), critic)
        require_apart(policy, policy.critic_target.parameters())
        return ExportedSACPolicy(actor, critic, actor.head)

    return whole


def _td3_whole(policy: TD3Policy, actor: Any) -> ExportedTD3Policy:
    critic = export_actor_critic(policy, actor, critic_of)
    _require_equal("critic_target", critic_of(policy.critic_target), critic)
    _require_equal("actor_target", td3_actor(policy.actor_target), actor)
    _require_sharing(policy.actor_target, policy.critic_target, critic.shares)
    require_apart(policy, policy.actor_target.parameters(), own_parameters(policy.critic_target))
    return ExportedTD3Policy(actor, critic, actor.head)


def require_apart(policy: Any, *targets: Iterable[nn.Parameter]) -> None:
    """Refuse an actor, critics and targets that share parameters, so that two vectors would have them."""
    _require_apart(policy.actor.parameters(), own_parameters(policy.critic), *targets)


def own_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a network, except for a features extractor that another network trains."""
    shares = getattr(network, "share_features_extractor", False)
    return [each for name, each in network.named_parameters() if not (shares and name.startswith(EXTRACTOR))]


def _require_trainable(network: nn.Module, exported: ExportedNetwork, optimizer: torch.optim.Optimizer) -> None:
    own = set(map(id, own_parameters(network)))
    shared = {name for name, parameter in network.named_parameters() if id(parameter) not in own}
    has_log_std = isinstance(exported, ExportedSACActor) and exported.exploration is not None
    elsewhere = {"log_std"} if has_log_std else set()
    require_same_gradients(network, exported.module, optimizer, elsewhere, shared)


def _require_equal(name: str, target: ExportedNetwork, network: ExportedNetwork) -> None:
    if target != network:
        raise NotCompilable(f"{name} must have the same architecture as {name.removesuffix('_target')}.")


def _require_sharing(actor: BaseModel, critic: BaseModel, shares: bool) -> None:
    if shares and actor.features_extractor is not critic.features_extractor:
        raise NotCompilable(
            "share_features_extractor is set, but the actor and the critic have different features extractors."
        )


def _require_apart(*parameters: Iterable[nn.Parameter]) -> None:
    """Refuse parameters that would be in two vectors."""
    every = [id(parameter) for each in parameters for parameter in each]
    if len(set(every)) < len(every):
        raise NotCompilable(
            "The networks share parameters other than those that share_features_extractor makes them share."
        )


KINDS = (
    Kind(DQNPolicy, ("q_net",), ("q_net_target",), q_network, q_learning("q_net", q_network, ExportedDQNPolicy)),
    Kind(SACPolicy, ("actor", "critic"), ("critic_target",), sac_actor, soft_actor_critic(critic_of)),
    Kind(TD3Policy, ("actor", "critic"), ("actor_target", "critic_target"), td3_actor, _td3_whole),
)
