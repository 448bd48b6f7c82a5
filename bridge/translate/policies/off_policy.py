"""Translation of off-policy policies: SB3's DQN, SAC, TD3 and DDPG here, sb3-contrib's in off_policy_contrib."""

from __future__ import annotations

import importlib
import sys

import torch
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from torch import nn

from bridge.contrib import is_maskable
from bridge.errors import NotCompilable
from bridge.translate.policies.exported_network import ExportedNetwork, require_methods
from bridge.translate.policies.exported_policy import ExportedPolicy
from bridge.translate.policies.off_policy_kinds import KINDS, Kind, Tensors, own_parameters
from bridge.translate.policies.off_policy_networks import (
    ExportedActor,
    ExportedOffPolicy,
)
from bridge.translate.policies.on_policy import export_policy, require_sb3s_predict
from bridge.translate.pytorch.modules import require_no_forward_hooks

# Methods of policies that are translated by hand. A class that overrides one has no translation.
PREDICTION = ("predict", "_predict", "obs_to_tensor", "squash_output", "scale_action", "unscale_action")


def _kinds() -> tuple[Kind, ...]:
    if sys.modules.get("sb3_contrib") is None:  # then no policy has one of its classes
        return KINDS
    contrib: tuple[Kind, ...] = importlib.import_module("bridge.translate.policies.off_policy_contrib").KINDS
    return KINDS + contrib


def _kind_of(policy: BasePolicy) -> Kind | None:
    return next((kind for kind in _kinds() if isinstance(policy, kind.policy)), None)


def network_names(policy: BasePolicy) -> tuple[str, ...]:
    """Return the attributes with the networks of an off-policy policy. SB3's models use the same names."""
    kind = _kind_of(policy)
    return () if kind is None else (*kind.networks, *kind.targets)


def export_actor(policy: BasePolicy) -> ExportedActor:
    """Translate the network with which the policy of an off-policy algorithm acts.

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
    """Translate what a policy of any kind computes in `predict`.

    Raises:
      NotCompilable: as `export_policy` and `export_actor`; or it overrides how actions are chosen.
    """
    if isinstance(policy, ActorCriticPolicy) or is_maskable(policy):
        require_sb3s_predict(policy)  # type: ignore[arg-type]
        return export_policy(policy)  # type: ignore[arg-type]
    return export_actor(policy)


def acting_part(policy: BasePolicy) -> nn.Module:
    """Return the part of a policy that has the parameters of `export_acting`, in their order."""
    kind = _kind_of(policy)
    part: nn.Module = policy if kind is None else getattr(policy, kind.networks[0])
    return part


def acting_tensors(policy: BasePolicy, network: ExportedNetwork) -> list[torch.Tensor]:
    """Return the parameters and running statistics that a policy's `export_acting` uses, in its order."""
    part = acting_part(policy)
    tensors = {**dict(part.named_parameters()), **dict(part.named_buffers())}
    return [tensors[name] for name, _ in network.module.inputs]


def export_off_policy(policy: BasePolicy, actor: ExportedActor | None = None) -> ExportedOffPolicy:
    """Translate the policy of an off-policy algorithm with all networks that learn.

    Args:
      actor: the result of `export_actor`, if it exists already.

    Raises:
      NotCompilable: the policy computes or learns something that has no translation, or may do so.
    """
    actor = export_actor(policy) if actor is None else actor
    kind = _kind_of(policy)
    assert kind is not None  # otherwise there is no actor
    exported: ExportedOffPolicy = kind.whole(policy, actor)
    return exported


def learned_tensors(
    policy: BasePolicy, entropy: tuple[torch.Tensor, torch.optim.Optimizer] | None = None
) -> tuple[Tensors, Tensors, dict[str, torch.optim.Optimizer]]:
    """Return a policy's trained tensors, the other tensors that learning changes, and the optimizers.

    Each is a dict with the names of LearnerState.

    Args:
      entropy: SAC's `log_ent_coef` and its optimizer, if it is learned.

    Raises:
      NotCompilable: the optimizer of the entropy coefficient trains something else.
    """
    kind = _kind_of(policy)
    assert kind is not None  # otherwise nothing has been exported
    networks, targets = ({name: getattr(policy, name) for name in names} for names in (kind.networks, kind.targets))
    owners = [policy] if len(networks) == 1 else networks.values()
    params: Tensors = {name: [*own_parameters(network)] for name, network in networks.items()}
    optimizers = {name: owner.optimizer for name, owner in zip(networks, owners)}
    if entropy is not None:
        _require_entropy(*entropy)
        params["log_ent_coef"], optimizers["log_ent_coef"] = [entropy[0]], entropy[1]
    # The target of a critic has its own features extractor, or shares the one of the actor's target.
    own = own_parameters if "actor_target" in targets else nn.Module.parameters
    further: Tensors = {name: list(own(target)) for name, target in targets.items()}
    for name, network in networks.items():
        further |= {f"{name}_{part}": tensors for part, tensors in kind.statistics(network).items() if tensors}
    return params, further, optimizers


def _require_entropy(log_ent_coef: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if [*map(id, trained)] != [id(log_ent_coef)] or not log_ent_coef.requires_grad or log_ent_coef._backward_hooks:
        raise NotCompilable(
            "ent_coef_optimizer must train only log_ent_coef, and log_ent_coef must not be frozen or have hooks."
        )
