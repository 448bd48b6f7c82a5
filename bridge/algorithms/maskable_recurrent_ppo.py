"""RecurrentPPO without illegal actions, compiled."""

from __future__ import annotations

from typing import ClassVar, Unpack

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import Env, Policy, RecurrentPPOArguments
from bridge.algorithms.maskable_ppo import CompiledMaskablePPO
from bridge.stock import pytorch_maskable_recurrent_ppo as stock
from jaxenvs import learn


@compiled
class MaskableRecurrentPPO(CompiledMaskablePPO, stock.MaskableRecurrentPPO):  # type: ignore[misc]
    """PPO with LSTM policies that never takes illegal actions: `sb3_contrib.RecurrentPPO` with masks and `engine`.

    Use it when one observation does not show the state of the environment, and the environment reports which actions
    are legal, as card games do. Neither Stable-Baselines3 nor sb3-contrib has it; its policies subclass sb3-contrib's
    recurrent ones.
    """

    ROLLOUT_BUFFERS: ClassVar[tuple[type, ...]] = (
        stock.MaskableRecurrentRolloutBuffer,
        stock.MaskableRecurrentDictRolloutBuffer,
    )
    _algorithm: ClassVar[type[learn.PPO]] = learn.MaskableRecurrentPPO

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[RecurrentPPOArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)
