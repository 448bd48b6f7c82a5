"""PPO without illegal actions (Huang and Ontañón 2022, https://arxiv.org/abs/2006.14171), as sb3-contrib's."""

from __future__ import annotations

from typing import ClassVar

from jaxenvs.environment import struct
from jaxenvs.learn.on_policy.ppo import PPO


@struct
class MaskablePPO(PPO):
    """PPO on observations that are Masked: the network gives illegal actions no chance, and learns nothing of them.

    A Training finds the masks by `action_masks(state)` of the environment, `info["action_mask"]`, or the `action_mask`
    of an observation that is a dict. Actions are of a Discrete, MultiDiscrete or MultiBinary space.
    """

    MASKS: ClassVar[bool] = True
