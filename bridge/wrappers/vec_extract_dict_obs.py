"""VecExtractDictObs in compiled rollouts: one part of a Dict observation replaces it."""

from __future__ import annotations

from stable_baselines3.common.vec_env import VecExtractDictObs

from bridge.wrappers.compiled_wrapper import CompiledWrapper
from jaxenvs import VectorTimeStep, static, struct


@struct
class ExtractState:
    """The name of the part."""

    key: str = static()


class CompiledExtractDictObs(CompiledWrapper[VecExtractDictObs]):
    """Compiled VecExtractDictObs."""

    any_num_envs = divides = can_continue = True

    def state(self) -> ExtractState:
        return ExtractState(self.wrapper.key)

    @staticmethod
    def step(
        state: ExtractState, timestep: VectorTimeStep, action: object
    ) -> tuple[ExtractState, VectorTimeStep, object]:
        extracted = timestep.replace(
            observation=timestep.observation[state.key], final_observation=timestep.final_observation[state.key]
        )
        return state, extracted, ()
