"""Collecting in environments of tensors on a GPU: what the policy sees and does never leaves the device.

    the environment's tensors --> compiled policy --> the environment's actions     in each step
         |                            |
         v                            v
    observations, actions (n_steps, num_envs, ...) --> compiled update              on the device
         |
         +--> SB3's rollout buffer                                                  only before other code may see it

Rewards, flags of ended episodes and last observations go to the host in each step: there SB3 counts episodes.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from bridge.dlpack import to_jax, to_torch
from bridge.engine.acting import EvaluatingActor, is_where_jax_computes
from bridge.engine.callbacks.known import shows_ends
from bridge.engine.on_policy.host_loop import HostRollout
from bridge.engine.plan import Plan
from bridge.engine.rollout_buffer import DeviceArrays
from bridge.host_env.batches import device_of
from bridge.host_env.gym_vec_env import GymVecEnv
from bridge.observations import map_parts
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
    if not isinstance(plan.actor, EvaluatingActor) or algorithm.MASKS or hasattr(algorithm, "_last_lstm_states"):
        return False
    encoding = plan.actor.network.encoding
    parts = [encoding] if isinstance(encoding, Encoding) else [part for _, part in encoding]
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(algorithm.rollout_buffer.observations)}
    return (
        is_where_jax_computes(torch.empty(0, device=env.tensor_device))
        and (env.tensor_device.index or 0) == jax.local_devices()[0].id
        and not any(part.nvec for part in parts)
        and WIDE_INTEGERS.isdisjoint(dtypes)
        and not shows_ends(callback)
    )


class DeviceRollout(HostRollout):
    """HostRollout whose observations and actions stay on the device, as long as compiled functions act."""

    _env: GymVecEnv
    _arrays: DeviceArrays | None = None

    def run(self, has_begun: bool = False) -> bool:
        """Collect the rollout, with the arguments, results and errors of HostRollout's method."""
        try:
            return super().run(has_begun)
        finally:
            self._leave_device()

    def _leave_device(self) -> None:
        """Let SB3's attributes have what is on the device."""
        arrays, self._arrays = self._arrays, None
        if arrays is not None:
            arrays.write_back()
        if device_of(self._algorithm._last_obs) is not None:
            self._algorithm._last_obs = self._env.as_arrays(self._algorithm._last_obs)

    # --- HostRollout's methods, as long as compiled functions act -----------------------------------------------

    def _seen(self, observation: Any) -> Observation:
        if self._actor is None:
            return super()._seen(observation)
        if self._buffer.pos == 0:
            assert self._env.tensor_device is not None
            self._arrays, self._before = DeviceArrays(self._buffer, self._env.tensor_device), _flat(self._plan.params)
        return self._to_jax(observation, self._buffer.pos)

    def _to_jax(self, observation: Any, step: int | None = None) -> Observation:
        """Return observations as the policy takes them, and store them as those of a step."""
        assert self._arrays is not None

        def convert(stored: torch.Tensor, part: Any) -> jax.Array:
            # A copy, because environments may overwrite their tensors, and because JAX needs memory that is aligned.
            part = torch.as_tensor(part, device=stored.device).detach().to(stored.dtype, copy=True)
            if step is not None:
                stored[step] = part.reshape(stored.shape[1:])
            array: jax.Array = to_jax(part)
            return array

        seen: Observation = map_parts(convert, self._arrays.observations, observation)
        return seen

    def _act(self, seen: Observation, step: int) -> Any:
        if self._actor is None:
            return super()._act(seen, step)
        return to_torch(self._actor.act_on_device(seen, None if self._noise is None else self._noise[step]))

    def _step_env(self, to_env: Any) -> Any:
        if self._actor is None:
            return super()._step_env(to_env)
        space = self._env.action_space
        if isinstance(space, spaces.Box):
            low, high = (torch.as_tensor(bound, device=to_env.device) for bound in (space.low, space.high))
            to_env = torch.clamp(to_env, low, high)
        # A copy, because JAX takes its array for constant, and environments may write into actions.
        return self._env.step_tensors(to_env.to(torch.from_numpy(np.empty(0, space.dtype)).dtype, copy=True))

    def _store(self, step: int, observation: Any, seen: Any, actions: Any) -> None:
        if self._arrays is None:
            super()._store(step, observation, seen, actions)
        else:
            self._arrays.actions[step] = actions.reshape(self._arrays.actions.shape[1:])

    def _watch(self, step: int) -> None:
        super()._watch(step)
        if self._actor is None:
            self._leave_device()

    def _has_same_weights(self, params: Vector) -> bool:
        return torch.equal(_flat(params), self._before)

    def _rollout(self) -> Rollout:
        return super()._rollout() if self._arrays is None else self._arrays.read()

    def _last_seen(self) -> Observation:
        return self._to_jax(self._algorithm._last_obs)

    def _complete(self) -> None:
        if self._arrays is not None and self._plan.learner is not None and not self._plan.user_code:
            self._session.keep(self._arrays, self._callback)
            self._arrays = None
        self._leave_device()


def _flat(params: Vector | None) -> torch.Tensor:
    assert params is not None
    return torch.cat([tensor.detach().flatten() for tensor in params.tensors])
