"""VecCheckNan in compiled rollouts: NaN and infinity raise or warn, with their source."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from stable_baselines3.common.vec_env import VecCheckNan

from bridge.wrappers.compiled_wrapper import CompiledWrapper
from jaxenvs import VectorTimeStep


class Checked(NamedTuple):
    """The arrays of a step that VecCheckNan checks."""

    action: object
    observation: object
    reward: jax.Array


class CompiledCheckNan(CompiledWrapper[VecCheckNan]):
    """Compiled VecCheckNan, which checks the steps of a rollout in order, after its end, with SB3's messages."""

    any_num_envs = divides = True

    @staticmethod
    def step(state: object, timestep: VectorTimeStep, action: object) -> tuple[object, VectorTimeStep, Checked]:
        return state, timestep, Checked(action, timestep.observation, timestep.reward)

    def check(self, outputs: Checked) -> None:
        # Usually there is nothing to report, and checking all steps at once takes no time.
        is_clean = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(outputs))
        for step in range(len(outputs.reward) - 1 if is_clean else 0, len(outputs.reward)):
            action, observation, reward = jax.tree.map(lambda leaf, step=step: np.array(leaf[step]), outputs)
            self.wrapper._check_val(event="step_async", actions=action)
            self.wrapper._actions = action
            self.wrapper._check_val(event="step_wait", observations=observation, rewards=reward)
            self.wrapper._observations = observation
