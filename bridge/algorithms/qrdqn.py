"""sb3-contrib's QRDQN, compiled."""

from __future__ import annotations

from typing import Unpack

import sb3_contrib

from bridge.algorithms.common.compiled_algorithm import compiled
from bridge.algorithms.common.constructor_arguments import DQNArguments, Env, Policy
from bridge.algorithms.common.epsilon_greedy import EpsilonGreedyAlgorithm
from jaxenvs import learn


@compiled
class QRDQN(EpsilonGreedyAlgorithm, sb3_contrib.QRDQN):
    """Quantile-regression DQN (QRDQN): `sb3_contrib.QRDQN`, compiled, with the same arguments and `engine`.

    Use it as DQN, for Discrete actions, when returns vary a lot: it learns the quantiles of the return of each action
    instead of its mean, at the cost of a larger network output.
    """

    def __init__(
        self, policy: Policy, env: Env, *args: object, engine: str = "auto", **kwargs: Unpack[DQNArguments]
    ) -> None:
        super().__init__(policy, env, *args, engine=engine, **kwargs)

    def _settings_now(self) -> learn.QRDQN:
        return learn.QRDQN(
            **self._shared_settings(),
            target_update_interval=self.target_update_interval,
            max_grad_norm=None if self.max_grad_norm is None else float(self.max_grad_norm),
        )
