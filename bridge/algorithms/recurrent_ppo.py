"""sb3-contrib's RecurrentPPO, compiled."""

from __future__ import annotations

from typing import ClassVar

import sb3_contrib
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer

from bridge.algorithms.common.compiled_algorithm import constructor_like
from bridge.algorithms.ppo import CompiledPPO
from bridge.engine.user_code.overrides import compiled
from jaxenvs import learn


@compiled
class RecurrentPPO(CompiledPPO, sb3_contrib.RecurrentPPO):
    """PPO with LSTM policies: `sb3_contrib.RecurrentPPO`, compiled, with the same arguments and `engine`.

    Use it when one observation does not show the state of the environment, so that the policy has to remember earlier
    ones. Otherwise PPO trains faster.
    """

    __init__ = constructor_like(CompiledPPO, sb3_contrib.RecurrentPPO)

    ROLLOUT_BUFFERS: ClassVar[tuple[type, ...]] = (RecurrentRolloutBuffer, RecurrentDictRolloutBuffer)
    SHOWS_ROLLOUT_END: ClassVar[bool] = False
    _algorithm: ClassVar[type[learn.PPO]] = learn.RecurrentPPO
