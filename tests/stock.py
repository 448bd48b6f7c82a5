"""The algorithms in PyTorch that ours are compared with, by name: SB3's, sb3-contrib's, and those of `bridge.stock`."""

import types

import sb3_contrib
import stable_baselines3

from bridge.stock.pytorch_maskable_recurrent_ppo import MaskableRecurrentPPO
from bridge.stock.pytorch_pqn import PQN

STOCK = types.SimpleNamespace(
    **{
        name: getattr(package, name)
        for package in (sb3_contrib, stable_baselines3)
        for name in package.__all__
        if isinstance(getattr(package, name), type)
    },
    MaskableRecurrentPPO=MaskableRecurrentPPO,
    PQN=PQN,
)
