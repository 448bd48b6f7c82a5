"""Translation of sb3-contrib's QRDQN, TQC and CrossQ policies. Imported only if sb3-contrib is imported."""

from __future__ import annotations

import functools

from sb3_contrib.common.torch_layers import BatchRenorm1d
from sb3_contrib.crossq.policies import Actor as CrossQActor
from sb3_contrib.crossq.policies import CrossQCritic, CrossQPolicy
from sb3_contrib.qrdqn.policies import QRDQNPolicy, QuantileNetwork
from sb3_contrib.tqc.policies import Actor as TQCActor
from sb3_contrib.tqc.policies import Critic as TQCCritic
from sb3_contrib.tqc.policies import TQCPolicy
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.policies.exported_network import ExportedNetwork, require_methods
from bridge.translate.policies.off_policy_networks import (
    EXTRACTOR,
    ExportedCritic,
    ExportedQRDQNPolicy,
    ExportedQuantileCritic,
    ExportedQuantileNetwork,
    ExportedSACActor,
    ExportedSACPolicy,
)
from bridge.translate.policies.off_policy_translations import (
    Q_NETWORK,
    Translation,
    chained,
    checked,
    critic_fields,
    sac_actor,
    with_head,
)
from bridge.translate.pytorch.tracing import STATISTICS


def _quantile_network(network: QuantileNetwork) -> ExportedQuantileNetwork:
    require_methods(network, QuantileNetwork, Q_NETWORK)
    fields, quantiles = with_head(network, chained("quantile_net"), "discrete"), network.n_quantiles
    return checked(ExportedQuantileNetwork(*fields, quantiles), network, 2, quantiles, fields[-1].size)


def _quantile_critic(critic: TQCCritic) -> ExportedQuantileCritic:
    require_methods(critic, TQCCritic, ("forward", "extract_features"))
    exported = ExportedQuantileCritic(*critic_fields(critic), critic.n_quantiles)
    return checked(exported, critic, critic.n_critics, critic.n_quantiles, 2)


def _crossq_actor(actor: CrossQActor) -> ExportedSACActor:
    require_methods(actor, CrossQActor, ("set_bn_training_mode",))
    exported = sac_actor(actor, CrossQActor)
    _require_layers(actor, exported)
    return exported


def _crossq_critic(critic: CrossQCritic) -> ExportedCritic:
    require_methods(critic, CrossQCritic, ("forward", "extract_features", "set_bn_training_mode"))
    exported = checked(ExportedCritic(*critic_fields(critic)), critic, critic.n_critics, 2)
    _require_layers(critic, exported)
    return exported


def _require_layers(network: nn.Module, exported: ExportedNetwork) -> None:
    """Refuse running statistics that do not belong to one layer each, which is used once for each batch."""
    layers = [(path, part) for path, part in network.named_modules() if type(part) is BatchRenorm1d]
    expected = [f"{path}.{name}" for path, _ in layers for name in STATISTICS]
    if [name for name in exported.module.computation.read if name in set(expected)] != expected:
        raise NotCompilable("Each batch renormalization layer must be used exactly once, in the order of the modules.")
    for path, layer in layers:
        if path.startswith(EXTRACTOR) or not layer.affine:
            raise NotCompilable(
                f"{path} cannot be translated to JAX: batch renormalization must have affine=True and be outside of "
                "features extractors."
            )


TRANSLATIONS = (
    Translation(QRDQNPolicy, ExportedQRDQNPolicy, {"quantile_net": _quantile_network}, ("quantile_net_target",)),
    Translation(
        TQCPolicy,
        ExportedSACPolicy,
        {"actor": functools.partial(sac_actor, base=TQCActor), "critic": _quantile_critic},
        ("critic_target",),
    ),
    Translation(CrossQPolicy, ExportedSACPolicy, {"actor": _crossq_actor, "critic": _crossq_critic}),
)
