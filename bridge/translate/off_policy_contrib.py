"""sb3-contrib's off-policy policies in JAX: those of QRDQN and TQC. Imported only where sb3-contrib is."""

from __future__ import annotations

from sb3_contrib.qrdqn.policies import QRDQNPolicy, QuantileNetwork
from sb3_contrib.tqc.policies import Actor as TQCActor
from sb3_contrib.tqc.policies import Critic as TQCCritic
from sb3_contrib.tqc.policies import TQCPolicy
from torch import nn

from bridge.translate.exported_network import Encoded, Parts, export_parts, require_methods
from bridge.translate.off_policy import Kind, q_learning, soft_actor_critic
from bridge.translate.off_policy_networks import (
    ExportedQRDQNPolicy,
    ExportedQuantileCritic,
    ExportedQuantileNetwork,
    ExportedSACActor,
)
from bridge.translate.off_policy_parts import Q_NETWORK, checked, critic_parts, head_of, sac_actor


def _quantile_network(network: QuantileNetwork) -> ExportedQuantileNetwork:
    require_methods(network, QuantileNetwork, Q_NETWORK)
    parts = export_parts(network, _QuantileNetwork(network))
    return checked(ExportedQuantileNetwork(*parts, head_of(network, "discrete"), network.n_quantiles), network)


def _tqc_actor(actor: TQCActor) -> ExportedSACActor:
    return sac_actor(actor, TQCActor)


def _quantile_critic(critic: TQCCritic) -> ExportedQuantileCritic:
    require_methods(critic, TQCCritic, ("forward", "extract_features"))
    return checked(ExportedQuantileCritic(*critic_parts(critic), n_quantiles=critic.n_quantiles), critic)


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
)
