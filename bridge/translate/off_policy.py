"""Stable-Baselines3's off-policy policies in JAX: those of DQN, SAC, TD3 and DDPG."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution, StateDependentNoiseDistribution
from stable_baselines3.common.policies import ActorCriticPolicy, BaseModel, BasePolicy, ContinuousCritic
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN, SACPolicy
from stable_baselines3.sac.policies import Actor as SACActor
from stable_baselines3.td3.policies import Actor as TD3Actor
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.exported_network import (
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
from bridge.translate.modules import require_no_forward_hooks, require_same_gradients
from bridge.translate.off_policy_networks import (
    EXTRACTOR,
    ExportedActor,
    ExportedCritic,
    ExportedDQNPolicy,
    ExportedOffPolicy,
    ExportedQNetwork,
    ExportedSACActor,
    ExportedSACPolicy,
    ExportedTD3Actor,
    ExportedTD3Policy,
)
from bridge.translate.policies import ExportedPolicy, export_policy, require_sb3s_predict
from jaxenvs.learn.networks import ActionHead

# What is translated, so that no class may have its own: of policies, and of their networks.
PREDICTION = ("predict", "_predict", "obs_to_tensor", "squash_output", "scale_action", "unscale_action")
Q_NETWORK = ("forward", "_predict", "extract_features")
SAC_ACTOR = ("forward", "_predict", "extract_features", "get_action_dist_params", "action_log_prob", "reset_noise")
TD3_ACTOR = ("forward", "_predict", "extract_features")
CRITIC = ("forward", "q1_forward", "extract_features")

OffPolicy = DQNPolicy | SACPolicy | TD3Policy
Tensors = dict[str, list[torch.Tensor]]
Exported = TypeVar("Exported", bound=ExportedNetwork)


def export_actor(policy: OffPolicy) -> ExportedActor:
    """What a DQNPolicy, SACPolicy or TD3Policy acts with.

    Raises:
      NotCompilable: the policy computes something that has no translation, or may do so.
    """
    base = next((each for each in (DQNPolicy, SACPolicy, TD3Policy) if isinstance(policy, each)), None)
    if base is None:
        raise NotCompilable(f"The policy must be a DQNPolicy, SACPolicy or TD3Policy, got a {type(policy).__name__}.")
    require_no_forward_hooks(policy)
    require_methods(policy, base, PREDICTION)
    if isinstance(policy, DQNPolicy):
        return _q_network(policy.q_net)
    return _sac_actor(policy.actor) if isinstance(policy, SACPolicy) else _td3_actor(policy.actor)


def export_acting(policy: BasePolicy) -> ExportedPolicy | ExportedActor:
    """What a policy of any kind gives in `predict`.

    Raises:
      NotCompilable: as `export_policy` and `export_actor`; or it chooses actions in a way of its own.
    """
    if isinstance(policy, ActorCriticPolicy):
        require_sb3s_predict(policy)
        return export_policy(policy)
    return export_actor(policy)  # type: ignore[arg-type]


def acting_part(policy: BasePolicy) -> nn.Module:
    """The part of a policy that has the parameters of `export_acting`, in their order."""
    if isinstance(policy, DQNPolicy):
        return policy.q_net
    return policy.actor if isinstance(policy, SACPolicy | TD3Policy) else policy


def export_off_policy(policy: OffPolicy, actor: ExportedActor | None = None) -> ExportedOffPolicy:
    """A DQNPolicy, SACPolicy or TD3Policy with all that it learns.

    Args:
      actor: what `export_actor` gives for it, where that is at hand.

    Raises:
      NotCompilable: the policy computes or learns something that has no translation, or may do so.
    """
    actor = export_actor(policy) if actor is None else actor
    if isinstance(policy, DQNPolicy):
        assert isinstance(actor, ExportedQNetwork)
        _require_equal("q_net_target", _q_network(policy.q_net_target), actor)
        _require_trainable(policy.q_net, actor, policy.optimizer)
        _require_apart(policy.q_net.parameters(), policy.q_net_target.parameters())
        return ExportedDQNPolicy(actor, actor.head)
    critic = _critic(policy.critic)
    _require_equal("critic_target", _critic(policy.critic_target), critic)
    _require_trainable(policy.actor, actor, policy.actor.optimizer)
    _require_trainable(policy.critic, critic, policy.critic.optimizer)
    _require_sharing(policy.actor, policy.critic, critic.shares)
    trained = (*policy.actor.parameters(), *own_parameters(policy.critic))
    if isinstance(policy, SACPolicy):
        assert isinstance(actor, ExportedSACActor)
        _require_apart(trained, policy.critic_target.parameters())
        return ExportedSACPolicy(actor, critic, actor.head)
    assert isinstance(actor, ExportedTD3Actor)
    _require_equal("actor_target", _td3_actor(policy.actor_target), actor)
    _require_sharing(policy.actor_target, policy.critic_target, critic.shares)
    _require_apart(trained, policy.actor_target.parameters(), own_parameters(policy.critic_target))
    return ExportedTD3Policy(actor, critic, actor.head)


def learned_tensors(
    policy: OffPolicy, entropy: tuple[torch.Tensor, torch.optim.Optimizer] | None = None
) -> tuple[Tensors, Tensors, dict[str, torch.optim.Optimizer]]:
    """The tensors that learning changes, the targets and the optimisers of a policy, by the names of OffPolicyState.

    Args:
      entropy: SAC's `log_ent_coef` and its optimiser, if it is learned.

    Raises:
      NotCompilable: the optimiser of the entropy coefficient trains something else.
    """
    if isinstance(policy, DQNPolicy):
        targets = _own({"q_net_target": policy.q_net_target})
        return _own({"q_net": policy.q_net}), targets, {"q_net": policy.optimizer}
    params = _own({"actor": policy.actor, "critic": policy.critic})
    optimizers = {"actor": policy.actor.optimizer, "critic": policy.critic.optimizer}
    if isinstance(policy, TD3Policy):
        return params, _own({"actor_target": policy.actor_target, "critic_target": policy.critic_target}), optimizers
    if entropy is not None:
        _require_entropy(*entropy)
        params["log_ent_coef"], optimizers["log_ent_coef"] = [entropy[0]], entropy[1]
    return params, {"critic_target": list(policy.critic_target.parameters())}, optimizers


def _own(networks: dict[str, nn.Module]) -> Tensors:
    return {name: [*own_parameters(network)] for name, network in networks.items()}


def own_parameters(network: nn.Module) -> list[nn.Parameter]:
    """The parameters of a network, but for those of a features extractor that another network trains."""
    shares = isinstance(network, ContinuousCritic) and network.share_features_extractor
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


def _q_network(network: QNetwork) -> ExportedQNetwork:
    require_methods(network, QNetwork, Q_NETWORK)
    return _checked(ExportedQNetwork(*export_parts(network, _QNetwork(network)), _head(network)), network)


def _sac_actor(actor: SACActor) -> ExportedSACActor:
    require_methods(actor, SACActor, SAC_ACTOR)
    return _checked(ExportedSACActor(*export_parts(actor, _SACActor(actor)), _head(actor), _exploration(actor)), actor)


def _td3_actor(actor: TD3Actor) -> ExportedTD3Actor:
    require_methods(actor, TD3Actor, TD3_ACTOR)
    return _checked(ExportedTD3Actor(*export_parts(actor, _TD3Actor(actor)), _head(actor)), actor)


def _critic(critic: ContinuousCritic) -> ExportedCritic:
    require_methods(critic, ContinuousCritic, CRITIC)
    if [*critic.q_networks] != [getattr(critic, f"qf{index}", None) for index in range(critic.n_critics)]:
        raise NotCompilable(f"The {critic.n_critics} q_networks of the critic must be its qf0, qf1 and so on.")
    head, shares = _head(critic), critic.share_features_extractor
    encoding, module = export_parts(critic, _Critic(critic), head.size)
    return _checked(ExportedCritic(encoding, module, head, critic.n_critics, shares), critic)


def _head(network: BaseModel) -> ActionHead:
    head = export_head(network.action_space)
    kind = "discrete" if isinstance(network, QNetwork) else "box"
    if head.kind != kind:
        raise NotCompilable(f"The actions of a {type(network).__name__} must be {kind}, got {network.action_space}.")
    return head


def _exploration(actor: SACActor) -> Exploration | None:
    kind = StateDependentNoiseDistribution if actor.use_sde else SquashedDiagGaussianDistribution
    if type(actor.action_dist) is not kind:
        raise NotCompilable(f"action_dist must be a {kind.__name__}, got a {type(actor.action_dist).__name__}.")
    return export_exploration(actor.action_dist, squash=True, learn_features=True) if actor.use_sde else None


def _checked(exported: Exported, network: BaseModel) -> Exported:
    """The network, if its results are what the algorithms take.

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
    is_critic = isinstance(network, ExportedCritic)
    (shape,) = shapes_given(network, apply, dtype, *[size] * is_critic)
    if shape != ((network.n_critics, 2) if is_critic else (2, size)):
        raise NotCompilable(f"For two observations and {size} numbers an action, a network gave the shape {shape}.")


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

    def __init__(self, actor: SACActor) -> None:
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

    def __init__(self, critic: ContinuousCritic) -> None:
        super().__init__(critic)
        self.n_critics, self.share_features_extractor = critic.n_critics, critic.share_features_extractor

    def forward(self, x: Encoded, action: torch.Tensor) -> object:
        with torch.set_grad_enabled(not self.share_features_extractor):
            features = self.features_extractor(x)
        inputs = torch.cat([features, action], dim=1)
        return tuple(getattr(self, f"qf{index}")(inputs) for index in range(self.n_critics))
