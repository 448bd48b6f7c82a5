"""Translation of off-policy policies: SB3's DQN, SAC, TD3 and DDPG, and sb3-contrib's QRDQN, TQC and CrossQ."""

from __future__ import annotations

import importlib
import sys

import torch
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from torch import nn

from bridge.contrib import contrib_class, is_maskable
from bridge.errors import NotCompilable
from bridge.translate.policies.exported_network import ExportedNetwork, require_methods
from bridge.translate.policies.exported_policy import ExportedPolicy
from bridge.translate.policies.off_policy_networks import (
    EXTRACTOR,
    ExportedActor,
    ExportedCritic,
    ExportedOffPolicy,
    ExportedSACActor,
)
from bridge.translate.policies.off_policy_translations import TRANSLATIONS, Translation
from bridge.translate.policies.on_policy import export_policy, require_sb3s_predict
from bridge.translate.pytorch.modules import require_no_forward_hooks, require_same_gradients
from bridge.translate.pytorch.tracing import RENORMALIZATION, STATISTICS
from bridge.translate.pytorch.vectors import flatten

Tensors = dict[str, list[torch.Tensor]]

# Methods of policies that are translated by hand. A class that overrides one has no translation.
PREDICTION = ("predict", "_predict", "obs_to_tensor", "squash_output", "scale_action", "unscale_action")


def _translations() -> tuple[Translation, ...]:
    if sys.modules.get("sb3_contrib") is None:  # then no policy has one of its classes
        return TRANSLATIONS
    contrib = importlib.import_module("bridge.translate.policies.off_policy_contrib")
    return (*TRANSLATIONS, *contrib.TRANSLATIONS)


def _translation_of(policy: BasePolicy) -> Translation | None:
    return next((translation for translation in _translations() if isinstance(policy, translation.policy)), None)


def network_names(policy: BasePolicy) -> tuple[str, ...]:
    """Return the attributes with the networks of an off-policy policy. SB3's models use the same names."""
    translation = _translation_of(policy)
    return () if translation is None else (*translation.networks, *translation.targets)


def export_actor(policy: BasePolicy) -> ExportedActor:
    """Translate the network with which the policy of an off-policy algorithm acts."""
    translation = _translation_of(policy)
    if translation is None:
        known = ", ".join(translation.policy.__name__ for translation in _translations())
        raise NotCompilable(f"The policy must be one of {known}, got a {type(policy).__name__}.")
    require_no_forward_hooks(policy)
    require_methods(policy, translation.policy, PREDICTION)
    name, export = next(iter(translation.networks.items()))
    exported: ExportedActor = export(getattr(policy, name))
    return exported


def export_acting(policy: BasePolicy) -> ExportedPolicy | ExportedActor:
    """Translate what a policy of any kind computes in `predict`, unless it overrides how actions are chosen."""
    if isinstance(policy, ActorCriticPolicy) or is_maskable(policy):
        require_sb3s_predict(policy)
        return export_policy(policy)  # type: ignore[arg-type]
    return export_actor(policy)


def acting_part(policy: BasePolicy) -> nn.Module:
    """Return the part of a policy that has the parameters of `export_acting`, in their order."""
    translation = _translation_of(policy)
    return policy if translation is None else getattr(policy, next(iter(translation.networks)))


def acting_tensors(policy: BasePolicy, network: ExportedNetwork) -> list[torch.Tensor]:
    """Return the parameters and running statistics that a policy's `export_acting` uses, in its order."""
    part = acting_part(policy)
    tensors = {**dict(part.named_parameters()), **dict(part.named_buffers())}
    return [tensors[name] for name, _ in network.module.inputs]


def export_off_policy(policy: BasePolicy, actor: ExportedActor | None = None) -> ExportedOffPolicy:
    """Translate the policy of an off-policy algorithm with all networks that learn, as these learn.

    Args:
      policy: of SB3 or sb3-contrib.
      actor: the result of `export_actor`, if it exists already.
    """
    actor = export_actor(policy) if actor is None else actor
    translation = _translation_of(policy)
    assert translation is not None  # otherwise there is no actor
    name, *others = translation.networks
    exported: dict[str, ExportedNetwork] = {name: actor}
    exported |= {other: translation.networks[other](getattr(policy, other)) for other in others}
    for name, optimizer in _optimizers(policy, translation).items():
        network, translated = getattr(policy, name), exported[name]
        own = set(map(id, own_parameters(network)))
        shared = {each for each, parameter in network.named_parameters() if id(parameter) not in own}
        has_log_std = isinstance(translated, ExportedSACActor) and translated.exploration is not None
        require_same_gradients(network, [translated.module], optimizer, ["log_std"] * has_log_std, shared)
    for target in translation.targets:
        name = target.removesuffix("_target")
        if translation.networks[name](getattr(policy, target)) != exported[name]:
            raise NotCompilable(f"{target} must have the same architecture as {name}.")
    critic = exported.get("critic")
    if isinstance(critic, ExportedCritic) and critic.shares:
        for suffix in ("", "_target") if "actor_target" in translation.targets else ("",):
            actor_part, critic_part = (getattr(policy, f"{each}{suffix}") for each in ("actor", "critic"))
            if actor_part.features_extractor is not critic_part.features_extractor:
                raise NotCompilable(
                    "share_features_extractor is set, but the actor and the critic have different features extractors."
                )
    in_vectors = [id(parameter) for each in _parameters(policy, translation).values() for parameter in each]
    if len(set(in_vectors)) < len(in_vectors):
        raise NotCompilable(
            "The networks share parameters other than those that share_features_extractor makes them share."
        )
    return translation.exported(*exported.values(), actor.head)


def learned_tensors(
    policy: BasePolicy, entropy: tuple[torch.Tensor, torch.optim.Optimizer] | None = None
) -> tuple[Tensors, Tensors, dict[str, torch.optim.Optimizer]]:
    """Return a policy's trained tensors, the other tensors that learning changes, and the optimizers.

    Each is a dict with the names of LearnerState.

    Args:
      policy: that `export_off_policy` has translated.
      entropy: SAC's `log_ent_coef` and its optimizer, if it is learned. The optimizer must train nothing else.
    """
    translation = _translation_of(policy)
    assert translation is not None  # otherwise nothing has been exported
    tensors, optimizers = _parameters(policy, translation), _optimizers(policy, translation)
    params = {name: tensors.pop(name) for name in translation.networks}
    if entropy is not None:
        log_ent_coef, optimizer = entropy
        trained = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        if trained != [id(log_ent_coef)] or not log_ent_coef.requires_grad or log_ent_coef._backward_hooks:
            raise NotCompilable(
                "ent_coef_optimizer must train only log_ent_coef, and log_ent_coef must not be frozen or have hooks."
            )
        params["log_ent_coef"], optimizers["log_ent_coef"] = [log_ent_coef], optimizer
    for name in translation.networks:
        # CrossQ's running statistics.
        layers = [each for each in getattr(policy, name).modules() if type(each) is contrib_class(*RENORMALIZATION)]
        if layers:
            tensors[f"{name}_statistics"] = [getattr(layer, each) for layer in layers for each in STATISTICS]
            tensors[f"{name}_steps"] = [layer.get_buffer("steps") for layer in layers]
    return params, tensors, optimizers


def own_parameters(network: nn.Module) -> list[torch.Tensor]:
    """Return the parameters of a network, except for a critic's features extractor that the actor trains."""
    # An actor that has an attribute of this name shares nothing.
    shares = hasattr(network, "n_critics") and getattr(network, "share_features_extractor", False)
    return [each for name, each in network.named_parameters() if not (shares and name.startswith(EXTRACTOR))]


def flatten_networks(policy: BasePolicy) -> None:
    """Give the parameters of each network one memory, as vectors that compiled functions read: see `Vector`."""
    translation = _translation_of(policy)
    if translation is not None:
        flatten(_parameters(policy, translation).values())
    elif isinstance(policy, ActorCriticPolicy) or is_maskable(policy):
        flatten([[*policy.parameters()]])


def _parameters(policy: BasePolicy, translation: Translation) -> Tensors:
    """Return the parameters that are in the vector of each network, the target networks last."""
    # The target of a critic has its own features extractor, or shares the one of the actor's target.
    of_target = own_parameters if "actor_target" in translation.targets else nn.Module.parameters
    parameters = {name: own_parameters(getattr(policy, name)) for name in translation.networks}
    return parameters | {name: list(of_target(getattr(policy, name))) for name in translation.targets}


def _optimizers(policy: BasePolicy, translation: Translation) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizer of each network. One that learns alone is trained by the policy's."""
    names = translation.networks
    return {name: (getattr(policy, name) if len(names) > 1 else policy).optimizer for name in names}
