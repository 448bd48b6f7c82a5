"""Stable-Baselines3's off-policy policies in JAX: those of DQN, SAC, TD3 and DDPG; the rest in off_policy_contrib."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from stable_baselines3.common.policies import ActorCriticPolicy, BaseModel, BasePolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from bridge.contrib import is_maskable
from bridge.errors import NotCompilable
from bridge.translate.policies.exported_network import ExportedNetwork, require_methods
from bridge.translate.policies.exported_policy import ExportedPolicy
from bridge.translate.policies.off_policy_networks import (
    EXTRACTOR,
    ExportedActor,
    ExportedCritic,
    ExportedDQNPolicy,
    ExportedOffPolicy,
    ExportedSACActor,
    ExportedSACPolicy,
    ExportedTD3Policy,
)
from bridge.translate.policies.off_policy_parts import critic_of, q_network, sac_actor, td3_actor
from bridge.translate.policies.on_policy import export_policy, require_sb3s_predict
from bridge.translate.pytorch.modules import require_no_forward_hooks, require_same_gradients

# What of policies is translated, so that no class may have its own.
PREDICTION = ("predict", "_predict", "obs_to_tensor", "squash_output", "scale_action", "unscale_action")

Tensors = dict[str, list[torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Kind:
    """How the policies of one class are translated.

    Attributes:
      policy: the class.
      networks: names of those that learn, that which acts first; targets: of those that follow them.
      actor: exports the network that acts.
      whole: from a policy and its exported actor to all that it learns.
      statistics: of a network, the tensors of its running statistics, by the ends of their names.
    """

    policy: type[BasePolicy]
    networks: tuple[str, ...]
    targets: tuple[str, ...]
    actor: Callable[[Any], Any]
    whole: Callable[[Any, Any], Any]
    statistics: Callable[[nn.Module], Tensors] = lambda network: {}


def _kinds() -> tuple[Kind, ...]:
    if sys.modules.get("sb3_contrib") is None:  # and there is no policy of its classes
        return KINDS
    contrib: tuple[Kind, ...] = importlib.import_module("bridge.translate.policies.off_policy_contrib").KINDS
    return KINDS + contrib


def _kind_of(policy: BasePolicy) -> Kind | None:
    return next((kind for kind in _kinds() if isinstance(policy, kind.policy)), None)


def network_names(policy: BasePolicy) -> tuple[str, ...]:
    """The attributes with the networks of an off-policy policy; SB3's models have them under the same names."""
    kind = _kind_of(policy)
    return () if kind is None else (*kind.networks, *kind.targets)


def export_actor(policy: BasePolicy) -> ExportedActor:
    """What the policy of an off-policy algorithm acts with.

    Raises:
      NotCompilable: the policy computes something that has no translation, or may do so.
    """
    kind = _kind_of(policy)
    if kind is None:
        known = ", ".join(kind.policy.__name__ for kind in _kinds())
        raise NotCompilable(f"The policy must be one of {known}, got a {type(policy).__name__}.")
    require_no_forward_hooks(policy)
    require_methods(policy, kind.policy, PREDICTION)
    exported: ExportedActor = kind.actor(getattr(policy, kind.networks[0]))
    return exported


def export_acting(policy: BasePolicy) -> ExportedPolicy | ExportedActor:
    """What a policy of any kind gives in `predict`.

    Raises:
      NotCompilable: as `export_policy` and `export_actor`; or it chooses actions in a way of its own.
    """
    if isinstance(policy, ActorCriticPolicy) or is_maskable(policy):
        require_sb3s_predict(policy)  # type: ignore[arg-type]
        return export_policy(policy)  # type: ignore[arg-type]
    return export_actor(policy)


def acting_part(policy: BasePolicy) -> nn.Module:
    """The part of a policy that has the parameters of `export_acting`, in their order."""
    kind = _kind_of(policy)
    part: nn.Module = policy if kind is None else getattr(policy, kind.networks[0])
    return part


def acting_tensors(policy: BasePolicy, network: ExportedNetwork) -> list[torch.Tensor]:
    """What a policy's `export_acting` computes with, in its order: parameters and running statistics."""
    part = acting_part(policy)
    tensors = {**dict(part.named_parameters()), **dict(part.named_buffers())}
    return [tensors[name] for name, _ in network.module.inputs]


def export_off_policy(policy: BasePolicy, actor: ExportedActor | None = None) -> ExportedOffPolicy:
    """The policy of an off-policy algorithm with all that it learns.

    Args:
      actor: what `export_actor` gives for it, where that is at hand.

    Raises:
      NotCompilable: the policy computes or learns something that has no translation, or may do so.
    """
    actor = export_actor(policy) if actor is None else actor
    kind = _kind_of(policy)
    assert kind is not None  # or there is no actor
    exported: ExportedOffPolicy = kind.whole(policy, actor)
    return exported


def q_learning(
    name: str, make: Callable[[Any], ExportedNetwork], exported: Callable[[Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """The `whole` of a policy that learns one network, by its name, whose target has `_target` behind it."""

    def whole(policy: Any, actor: Any) -> Any:
        network, target = getattr(policy, name), getattr(policy, f"{name}_target")
        _require_equal(f"{name}_target", make(target), actor)
        _require_trainable(network, actor, policy.optimizer)
        _require_apart(network.parameters(), target.parameters())
        return exported(actor, actor.head)

    return whole


def export_actor_critic(policy: Any, actor: Any, make_critic: Callable[[Any], ExportedCritic]) -> ExportedCritic:
    """The critic of a policy, which learns beside its actor."""
    critic = make_critic(policy.critic)
    _require_trainable(policy.actor, actor, policy.actor.optimizer)
    _require_trainable(policy.critic, critic, policy.critic.optimizer)
    _require_sharing(policy.actor, policy.critic, critic.shares)
    return critic


def soft_actor_critic(make_critic: Callable[[Any], ExportedCritic]) -> Callable[[Any, Any], ExportedSACPolicy]:
    """The `whole` of a policy as SAC's, whose critics are exported by a function."""

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
    """Refuse an actor and critics whose parameters, or those of their targets, are in two vectors."""
    _require_apart(policy.actor.parameters(), own_parameters(policy.critic), *targets)


def learned_tensors(
    policy: BasePolicy, entropy: tuple[torch.Tensor, torch.optim.Optimizer] | None = None
) -> tuple[Tensors, Tensors, dict[str, torch.optim.Optimizer]]:
    """The tensors that optimisers change, others that learning changes, and the optimisers of a policy, by the names of
    LearnerState.

    Args:
      entropy: SAC's `log_ent_coef` and its optimiser, if it is learned.

    Raises:
      NotCompilable: the optimiser of the entropy coefficient trains something else.
    """
    kind = _kind_of(policy)
    assert kind is not None  # or there is nothing exported
    networks, targets = ({name: getattr(policy, name) for name in names} for names in (kind.networks, kind.targets))
    owners = [policy] if len(networks) == 1 else networks.values()
    params: Tensors = {name: [*own_parameters(network)] for name, network in networks.items()}
    optimizers = {name: owner.optimizer for name, owner in zip(networks, owners)}
    if entropy is not None:
        _require_entropy(*entropy)
        params["log_ent_coef"], optimizers["log_ent_coef"] = [entropy[0]], entropy[1]
    # The target of a critic has an extractor of its own, or shares that of the actor's.
    own = own_parameters if "actor_target" in targets else nn.Module.parameters
    further: Tensors = {name: list(own(target)) for name, target in targets.items()}
    for name, network in networks.items():
        further |= {f"{name}_{part}": tensors for part, tensors in kind.statistics(network).items() if tensors}
    return params, further, optimizers


def own_parameters(network: nn.Module) -> list[nn.Parameter]:
    """The parameters of a network, but for those of a features extractor that another network trains."""
    shares = getattr(network, "share_features_extractor", False)
    return [each for name, each in network.named_parameters() if not (shares and name.startswith(EXTRACTOR))]


def _require_trainable(network: nn.Module, exported: ExportedNetwork, optimizer: torch.optim.Optimizer) -> None:
    own = set(map(id, own_parameters(network)))
    shared = {name for name, parameter in network.named_parameters() if id(parameter) not in own}
    has_log_std = isinstance(exported, ExportedSACActor) and exported.exploration is not None
    elsewhere = {"log_std"} if has_log_std else set()
    require_same_gradients(network, exported.module, optimizer, elsewhere, shared)


def _require_entropy(log_ent_coef: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if [*map(id, trained)] != [id(log_ent_coef)] or not log_ent_coef.requires_grad or log_ent_coef._backward_hooks:
        raise NotCompilable("ent_coef_optimizer must train log_ent_coef alone, which must not be frozen or have hooks.")


def _require_equal(name: str, target: ExportedNetwork, network: ExportedNetwork) -> None:
    if target != network:
        raise NotCompilable(f"{name} must have the architecture of what it follows.")


def _require_sharing(actor: BaseModel, critic: BaseModel, shares: bool) -> None:
    if shares and actor.features_extractor is not critic.features_extractor:
        raise NotCompilable("The critic shares its features extractor with the actor, but has another one.")


def _require_apart(*parameters: Iterable[nn.Parameter]) -> None:
    """Refuse parameters that are in two vectors."""
    every = [id(parameter) for each in parameters for parameter in each]
    if len(set(every)) < len(every):
        raise NotCompilable("The networks share parameters, but not as share_features_extractor does it.")


KINDS = (
    Kind(DQNPolicy, ("q_net",), ("q_net_target",), q_network, q_learning("q_net", q_network, ExportedDQNPolicy)),
    Kind(SACPolicy, ("actor", "critic"), ("critic_target",), sac_actor, soft_actor_critic(critic_of)),
    Kind(TD3Policy, ("actor", "critic"), ("actor_target", "critic_target"), td3_actor, _td3_whole),
)
