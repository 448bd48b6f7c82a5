"""VecFrameStack in compiled rollouts: the last observations of an episode together, zeros before the first."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from bridge.wrappers.compiled_wrapper import CompiledWrapper
from jaxenvs import VectorTimeStep, static, struct


@struct
class FrameStackState:
    """Stacked frames, in the structure of the observation, and the axis of each along which they are stacked.

    The newest frame is last. Axis 0 is the axis of environments.
    """

    frames: object
    axes: tuple[int, ...] = static()


class CompiledFrameStack(CompiledWrapper[VecFrameStack]):
    """Compiled VecFrameStack."""

    any_num_envs = divides = can_continue = True

    def around(self, venv: VecEnv) -> VecFrameStack:
        new = super().around(venv)
        new.stacked_obs = copy.deepcopy(self.wrapper.stacked_obs)
        for stack in jax.tree.leaves(CompiledFrameStack(new)._stacks()):
            stack.stacked_obs = np.zeros((venv.num_envs, *stack.stacked_shape), stack.stacked_obs.dtype)
        return new

    def state(self) -> FrameStackState:
        stacks, structure = jax.tree.flatten(self._stacks())
        frames = jax.tree.unflatten(structure, [stack.stacked_obs for stack in stacks])
        return FrameStackState(frames, tuple(stack.stack_dimension for stack in stacks))

    @staticmethod
    def step(
        state: FrameStackState, timestep: VectorTimeStep, action: object
    ) -> tuple[FrameStackState, VectorTimeStep, tuple[()]]:
        axes = jax.tree.unflatten(jax.tree.structure(state.frames), state.axes)

        def append(frames: jax.Array, axis: int, newest: jax.Array) -> jax.Array:
            size, depth = newest.shape[axis], frames.shape[axis]
            older = jax.lax.slice_in_dim(frames, size, depth, axis=axis % frames.ndim)
            return jnp.concatenate([older, newest.astype(frames.dtype)], axis)

        def start(frames: jax.Array) -> jax.Array:
            done = timestep.done.reshape(-1, *[1] * (frames.ndim - 1))
            return jnp.where(done, 0, frames)

        last = jax.tree.map(append, state.frames, axes, timestep.final_observation)
        frames = jax.tree.map(append, jax.tree.map(start, state.frames), axes, timestep.observation)
        stacked = timestep.replace(observation=frames, final_observation=last)
        return FrameStackState(frames, state.axes), stacked, ()

    def write_back(self, state: FrameStackState) -> None:
        for stack, frames in zip(jax.tree.leaves(self._stacks()), jax.tree.leaves(state.frames), strict=True):
            stack.stacked_obs = np.array(frames, stack.stacked_obs.dtype)

    def _stacks(self) -> object:
        """Return SB3's stacks, one for each array of the observation, in its structure."""
        stacked: StackedObservations[Any] = self.wrapper.stacked_obs
        return vars(stacked).get("sub_stacked_observations", stacked)
