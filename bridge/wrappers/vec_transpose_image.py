"""VecTransposeImage in compiled rollouts: images with the channels first, as PyTorch's convolutions take them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from stable_baselines3.common.vec_env import VecTransposeImage

from bridge.wrappers.compiled_wrapper import CompiledWrapper
from jaxenvs import VectorTimeStep, static, struct


@struct
class TransposeState:
    """The parts of a Dict observation that are images; None if the observation is an image itself."""

    image_keys: tuple[str, ...] | None = static()


class CompiledTransposeImage(CompiledWrapper[VecTransposeImage]):
    """Compiled VecTransposeImage."""

    any_num_envs = divides = can_continue = True

    def state(self) -> TransposeState:
        if self.wrapper.skip:
            return TransposeState(())
        keys = vars(self.wrapper).get("image_space_keys")
        return TransposeState(None if keys is None else tuple(keys))

    @staticmethod
    def step(
        state: TransposeState, timestep: VectorTimeStep, action: object
    ) -> tuple[TransposeState, VectorTimeStep, tuple[()]]:
        def transpose(observation: Any) -> object:
            if state.image_keys is None:
                return jnp.moveaxis(observation, -1, 1)
            return {**observation, **{key: jnp.moveaxis(observation[key], -1, 1) for key in state.image_keys}}

        if state.image_keys == ():
            return state, timestep, ()
        transposed = timestep.replace(
            observation=transpose(timestep.observation), final_observation=transpose(timestep.final_observation)
        )
        return state, transposed, ()
