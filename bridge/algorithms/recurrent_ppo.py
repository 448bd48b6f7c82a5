"""sb3-contrib's RecurrentPPO, compiled."""

from __future__ import annotations

from typing import ClassVar, Unpack

import sb3_contrib
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import Env, Policy, RecurrentPPOArguments
from bridge.algorithms.ppo import CompiledPPO
from jaxenvs import learn


@compiled
class RecurrentPPO(CompiledPPO, sb3_contrib.RecurrentPPO):
    """PPO with LSTM policies: `sb3_contrib.RecurrentPPO`, compiled, with the same arguments and `engine`.

    Use it when one observation does not show the state of the environment, so that the policy has to remember earlier
    ones. Otherwise PPO trains faster.
    """

    ROLLOUT_BUFFERS: ClassVar[tuple[type, ...]] = (RecurrentRolloutBuffer, RecurrentDictRolloutBuffer)
    _algorithm: ClassVar[type[learn.PPO]] = learn.RecurrentPPO

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[RecurrentPPOArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)
