"""Translation of sb3-contrib's QRDQN, TQC and CrossQ policies. Imported only if sb3-contrib is imported."""

from __future__ import annotations

from sb3_contrib.common.torch_layers import BatchRenorm1d
from sb3_contrib.crossq.policies import Actor as CrossQActor
from sb3_contrib.crossq.policies import CrossQCritic, CrossQPolicy
from sb3_contrib.qrdqn.policies import QRDQNPolicy, QuantileNetwork
from sb3_contrib.tqc.policies import Actor as TQCActor
from sb3_contrib.tqc.policies import Critic as TQCCritic
from sb3_contrib.tqc.policies import TQCPolicy
from torch import nn

from bridge.errors import NotCompilable
from bridge.translate.policies.crossq_networks import ExportedCrossQActor, ExportedCrossQCritic
from bridge.translate.policies.exported_network import Encoded, ExportedNetwork, Parts, export_parts, require_methods
from bridge.translate.policies.off_policy_kinds import (
    Kind,
    Tensors,
    export_actor_critic,
    q_learning,
    require_apart,
    soft_actor_critic,
)
from bridge.translate.policies.off_policy_networks import (
    EXTRACTOR,
    ExportedQRDQNPolicy,
    ExportedQuantileCritic,
    ExportedQuantileNetwork,
    ExportedSACActor,
    ExportedSACPolicy,
)
from bridge.translate.policies.off_policy_parts import Q_NETWORK, checked, critic_parts, head_of, sac_actor
from bridge.translate.pytorch.tracing import STATISTICS


def _quantile_network(network: QuantileNetwork) -> ExportedQuantileNetwork:
    require_methods(network, QuantileNetwork, Q_NETWORK)
    parts = export_parts(network, _QuantileNetwork(network))
    return checked(ExportedQuantileNetwork(*parts, head_of(network, "discrete"), network.n_quantiles), network)


def _tqc_actor(actor: TQCActor) -> ExportedSACActor:
    return sac_actor(actor, TQCActor)


def _quantile_critic(critic: TQCCritic) -> ExportedQuantileCritic:
    require_methods(critic, TQCCritic, ("forward", "extract_features"))
    return checked(ExportedQuantileCritic(*critic_parts(critic), n_quantiles=critic.n_quantiles), critic)


def _crossq_actor(actor: CrossQActor) -> ExportedCrossQActor:
    require_methods(actor, CrossQActor, ("set_bn_training_mode",))
    exported = sac_actor(actor, CrossQActor, ExportedCrossQActor)
    _require_layers(actor, exported)
    assert isinstance(exported, ExportedCrossQActor)
    return exported


def _crossq_critic(critic: CrossQCritic) -> ExportedCrossQCritic:
    require_methods(critic, CrossQCritic, ("forward", "extract_features", "set_bn_training_mode"))
    exported = checked(ExportedCrossQCritic(*critic_parts(critic, has_statistics=True)), critic)
    _require_layers(critic, exported)
    return exported


def _require_layers(network: nn.Module, exported: ExportedNetwork) -> None:
    """Refuse running statistics that do not belong to one layer each, which is used once for each batch."""
    layers = _layers(network)
    expected = [f"{path}.{name}" for path, _ in layers for name in STATISTICS]
    if [name for name in exported.module.computation.read if name in set(expected)] != expected:
        raise NotCompilable("Each batch renormalization layer must be used exactly once, in the order of the modules.")
    for path, layer in layers:
        if path.startswith(EXTRACTOR) or not layer.affine:
            raise NotCompilable(
                f"{path} cannot be translated to JAX: batch renormalization must have affine=True and be outside of "
                "features extractors."
            )


def _layers(network: nn.Module) -> list[tuple[str, BatchRenorm1d]]:
    return [(path, part) for path, part in network.named_modules() if type(part) is BatchRenorm1d]


def _statistics(network: nn.Module) -> Tensors:
    layers = [layer for _, layer in _layers(network)]
    statistics = [getattr(layer, name) for layer in layers for name in STATISTICS]
    return {"statistics": statistics, "steps": [layer.get_buffer("steps") for layer in layers]}


def _crossq(policy: CrossQPolicy, actor: ExportedCrossQActor) -> ExportedSACPolicy:
    critic = export_actor_critic(policy, actor, _crossq_critic)
    require_apart(policy)
    return ExportedSACPolicy(actor, critic, actor.head)


class _QuantileNetwork(Parts):
    features_extractor: nn.Module
    quantile_net: nn.Module

    def forward(self, x: Encoded) -> object:
        return self.quantile_net(self.features_extractor(x))


KINDS = (
    Kind(
        QRDQNPolicy,
        ("quantile_net",),
        ("quantile_net_target",),
        _quantile_network,
        q_learning("quantile_net", _quantile_network, ExportedQRDQNPolicy),
    ),
    Kind(TQCPolicy, ("actor", "critic"), ("critic_target",), _tqc_actor, soft_actor_critic(_quantile_critic)),
    Kind(CrossQPolicy, ("actor", "critic"), (), _crossq_actor, _crossq, _statistics),
)
