"""The SimBa policy of TQC, which needs sb3-contrib."""

from sb3_contrib.tqc.policies import TQCPolicy

from bridge.stock.pytorch_simba import SimbaOffPolicy


class SimbaTQCPolicy(SimbaOffPolicy, TQCPolicy):
    """SimBa policy for TQC."""
