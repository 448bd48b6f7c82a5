"""sb3-contrib's off-policy policies in JAX: those of QRDQN. Imported only where sb3-contrib is."""

from __future__ import annotations

from sb3_contrib.qrdqn.policies import QRDQNPolicy, QuantileNetwork
from torch import nn

from bridge.translate.exported_network import Encoded, Parts, export_parts, require_methods
from bridge.translate.off_policy import Kind, q_learning
from bridge.translate.off_policy_networks import ExportedQRDQNPolicy, ExportedQuantileNetwork
from bridge.translate.off_policy_parts import Q_NETWORK, checked, head_of


def _quantile_network(network: QuantileNetwork) -> ExportedQuantileNetwork:
    require_methods(network, QuantileNetwork, Q_NETWORK)
    parts = export_parts(network, _QuantileNetwork(network))
    return checked(ExportedQuantileNetwork(*parts, head_of(network, "discrete"), network.n_quantiles), network)


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
)
