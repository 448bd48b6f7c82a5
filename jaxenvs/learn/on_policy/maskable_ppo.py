"""PPO and RecurrentPPO without illegal actions (Huang and Ontañón 2022, https://arxiv.org/abs/2006.14171)."""

from __future__ import annotations

from typing import ClassVar

from jaxenvs.environment import struct
from jaxenvs.learn.on_policy.ppo import PPO
from jaxenvs.learn.on_policy.recurrent_ppo import RecurrentPPO


@struct
class MaskablePPO(PPO):
    """PPO on Masked observations: illegal actions have zero probability, and the network learns nothing from them.

    Use it where the legal actions depend on the state. A Training takes the masks from `action_masks(state)` of the
    environment, from `info["action_mask"]`, or from the entry `action_mask` of a dict observation. The action space is
    Discrete, MultiDiscrete or MultiBinary.
    """

    MASKS: ClassVar[bool] = True


@struct
class MaskableRecurrentPPO(RecurrentPPO):
    """RecurrentPPO without illegal actions: a recurrent network, whose Recalled observations are Masked.

    Use it where an observation does not show the whole state, and the legal actions depend on the state. A Training
    takes the masks as for MaskablePPO.
    """

    MASKS: ClassVar[bool] = True
