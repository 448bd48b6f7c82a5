"""sb3-contrib's TQC, compiled."""

from __future__ import annotations

from typing import Unpack

import sb3_contrib

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import Env, Policy, TQCArguments
from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.algorithms.sac import entropy_settings
from bridge.stock.pytorch_simba_tqc import SimbaTQCPolicy
from jaxenvs import learn


@compiled
class TQC(CompiledOffPolicyAlgorithm, sb3_contrib.TQC):
    """Truncated quantile critics (TQC): `sb3_contrib.TQC`, compiled, with the same arguments and `engine`.

    Use it as SAC, for continuous actions (Box), when SAC overestimates returns: its critics predict quantiles, of which
    the largest are dropped from the targets. An update takes longer than SAC's.
    """

    policy_aliases = sb3_contrib.TQC.policy_aliases | {"SimbaPolicy": SimbaTQCPolicy}

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[TQCArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)

    def _settings_now(self) -> learn.TQC:
        return learn.TQC(
            **self._shared_settings(),
            **entropy_settings(self),
            target_update_interval=self.target_update_interval,
            top_quantiles_to_drop_per_net=self.top_quantiles_to_drop_per_net,
        )
