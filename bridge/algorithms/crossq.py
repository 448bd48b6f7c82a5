"""sb3-contrib's CrossQ, compiled."""

from __future__ import annotations

from typing import ClassVar, Unpack

import sb3_contrib

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import CrossQArguments, Env, Policy
from bridge.algorithms.common.off_policy_algorithm import CompiledOffPolicyAlgorithm
from bridge.algorithms.sac import entropy_settings
from jaxenvs import learn


@compiled
class CrossQ(CompiledOffPolicyAlgorithm, sb3_contrib.CrossQ):
    """CrossQ: `sb3_contrib.CrossQ`, compiled, with the same arguments and `engine`.

    Use it for continuous actions (Box) when environment steps are expensive: it is SAC without target networks, with
    batch renormalization in actor and critics. It has an MlpPolicy only.
    """

    COUNTS_BEFORE_SAMPLING: ClassVar[bool] = True

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[CrossQArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)

    def _settings_now(self) -> learn.CrossQ:
        return learn.CrossQ(**self._shared_settings(), **entropy_settings(self), policy_delay=self.policy_delay)
