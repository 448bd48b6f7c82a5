"""Observations and actions of a rollout on the device where an environment of tensors has them.

    the environment's tensors --> compiled policy --> the environment's actions     in each step
         |                            |
         v                            v
    observations, actions (n_steps, num_envs, ...) --> compiled update              on the device
         |
         +--> SB3's rollout buffer                                                  only before other code may see it

Rewards, flags of ended episodes and last observations go to the host in each step: there SB3 counts episodes.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from bridge.dlpack import to_jax, to_torch
from bridge.engine.acting import is_where_jax_computes
from bridge.engine.callbacks.known import shows_ends
from bridge.engine.plan import Mode, Plan
from bridge.engine.rollout_buffer import read_rollout
from bridge.host_env.batches import as_array
from bridge.host_env.gym_vec_env import GymVecEnv
from bridge.observations import map_parts, parts_of
from bridge.sb3 import OnPolicy
from bridge.translate.policies.exported_network import WIDE_INTEGERS, Encoding
from bridge.translate.pytorch.vectors import Vector
from jaxenvs.learn import Rollout
from jaxenvs.learn.interfaces import Observation

# Tensors there are NumPy arrays at the same time, and calls with these are faster.
HOST = "cpu"


def stays_on_device(algorithm: OnPolicy, plan: Plan, env: VecEnv, callback: BaseCallback) -> bool:
    """Return whether a rollout can stay where the environments have their tensors.

    Not if observations must be checked or converted on the host, or if a callback is shown ends of episodes and could
    read the model's last observation.
    """
    if type(env) is not GymVecEnv or env.tensor_device is None or env.tensor_device.type == HOST:
        return False
    actor = plan.actor
    if actor is None or plan.mode is not Mode.ACTING or algorithm.MASKS or hasattr(algorithm, "_last_lstm_states"):
        return False
    encoding = plan.network.encoding
    encodings = [encoding] if isinstance(encoding, Encoding) else [part for _, part in encoding]
    return (
        plan.device is None
        and actor.device is None
        and is_where_jax_computes(torch.empty(0, device=env.tensor_device))
        and (env.tensor_device.index or 0) == jax.local_devices()[0].id
        and not any(part.nvec for part in encodings)
        and WIDE_INTEGERS.isdisjoint(array.dtype for array in parts_of(algorithm.rollout_buffer.observations))
        and not shows_ends(callback)
    )


class DeviceArrays:
    """Observations and actions of a rollout as tensors, while SB3's buffer has all of its other arrays.

    Args:
      env, buffer: of the rollout, which is about to begin.
      params: the weights that act.
    """

    def __init__(self, env: GymVecEnv, buffer: RolloutBuffer, params: Vector) -> None:
        def like(array: np.ndarray) -> torch.Tensor:
            return torch.empty_like(torch.from_numpy(array), device=env.tensor_device)

        self._env, self._buffer, self._weights = env, buffer, _flat(params)
        self._observations, self._actions = map_parts(like, buffer.observations), like(buffer.actions)
        space = env.action_space
        bounds = (space.low, space.high) if isinstance(space, spaces.Box) else ()
        self._bounds = [torch.as_tensor(bound, device=env.tensor_device) for bound in bounds]
        self._dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype

    def has_weights(self, params: Vector) -> bool:
        """Return whether the weights are the same as before the rollout."""
        return torch.equal(_flat(params), self._weights)

    def to_policy(self, observation: object, step: int | None = None) -> Observation:
        """Return observations as JAX arrays, and store them if they are those of a step."""

        def convert(stored: torch.Tensor, part: object) -> jax.Array:
            # A copy, because environments may overwrite their tensors, and because JAX needs memory that is aligned.
            part = torch.as_tensor(part, device=stored.device).detach().to(stored.dtype, copy=True)
            if step is not None:
                stored[step] = part.reshape(stored.shape[1:])
            array: jax.Array = to_jax(part)
            return array

        seen: Observation = map_parts(convert, self._observations, observation)
        return seen

    def step(self, step: int, actions: jax.Array, to_env: jax.Array) -> VecEnvStepReturn:
        """Step the environment, and store the actions; return what `step_tensors` does."""
        self._actions[step] = to_torch(actions).reshape(self._actions.shape[1:])
        tensor = to_torch(to_env)
        if self._bounds:
            tensor = torch.clamp(tensor, *self._bounds)
        # A copy, because JAX takes its array for constant, and environments may write into actions.
        return self._env.step_tensors(tensor.to(self._dtype, copy=True))

    def read(self) -> Rollout:
        """Return the rollout, as `read_rollout` does, on the device."""
        actions = self._actions.to(self._dtype)  # as in `read_rollout`
        if isinstance(self._buffer.action_space, spaces.Discrete):
            actions = actions[..., 0]
        rollout = read_rollout(self._buffer)
        return on_device(dataclasses.replace(rollout, observation=to_jax(self._observations), action=to_jax(actions)))

    def write_back(self) -> None:
        """Write what was collected until now into the buffer."""
        count = self._buffer.pos

        def write(tensor: torch.Tensor, array: np.ndarray) -> None:
            array[:count] = as_array(tensor[:count])

        map_parts(write, self._observations, self._buffer.observations)
        write(self._actions, self._buffer.actions)


def on_device(rollout: Rollout) -> Rollout:
    """Return a rollout all of whose arrays are on JAX's device."""
    moved: Rollout = jax.device_put(rollout, jax.local_devices()[0])
    return moved


def _flat(params: Vector) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in params.tensors])
