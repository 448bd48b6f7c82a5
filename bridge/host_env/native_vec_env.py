"""NativeVecEnv: a NativeVectorEnv presented as a Stable-Baselines3 VecEnv."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from bridge.host_env.batches import rows, take
from bridge.host_env.host_vec_env import HostVecEnv
from bridge.host_env.native import BufferPool, Buffers, NativeVectorEnv, views
from bridge.host_env.step_infos import StepInfos
from bridge.sb3 import Infos
from jaxenvs.arguments import positive_int


class NativeVecEnv(HostVecEnv):
    """Stable-Baselines3 VecEnv around an environment in C, C++ or Rust: see docs/native-environments.md.

    Use it for environments that follow the NativeVectorEnv protocol. They write observations and rewards into memory
    that is returned without a copy, and that a policy's tensors share. It is reused once no reference to any of it is
    left. Infos are as in JaxVecEnv.

    Attributes:
      env: the environment.
    """

    def __init__(self, env: NativeVectorEnv) -> None:
        """Wrap an environment.

        Args:
          env: an environment that follows the NativeVectorEnv protocol.

        Raises:
          TypeError: it does not follow the protocol, or SB3 has no policies for its spaces.
          ValueError: `num_envs` is not a positive int.
        """
        if not isinstance(env, NativeVectorEnv):
            needed = [*NativeVectorEnv.__annotations__, "reset_into", "step_into"]
            missing = [name for name in needed if not hasattr(env, name)]
            raise TypeError(f"env must be a NativeVectorEnv, but {type(env).__name__} has no {', '.join(missing)}.")
        self.env = env
        num_envs = positive_int("env.num_envs", env.num_envs)
        self._pool = BufferPool(num_envs, env.observation_space)
        self._buffers: Buffers | None = None
        self._actions: np.ndarray | None = None
        self._send: Callable[[np.ndarray, Buffers], object] = env.step_into
        self._receive: Callable[[], object] = lambda: None
        if hasattr(env, "send") and hasattr(env, "recv"):
            self._send, self._receive = env.send, env.recv
        super().__init__(env, num_envs, env.observation_space, env.action_space)

    def set_options(self, options: list[dict[str, Any]] | Mapping[str, object] | None = None) -> None:
        """Raise ValueError if there are options, which the protocol does not have."""
        if options and any(options if isinstance(options, list) else [options]):
            raise ValueError(f"A NativeVecEnv accepts no reset options, got {options}.")

    def _reset_all(self) -> tuple[object, Infos]:
        buffers = self._pool.take()
        given = [seed % 2**64 for seed in self._seeds if seed is not None]
        seeds = np.array(given, np.uint64) if given else None
        self.env.reset_into(buffers, seeds)
        return views(buffers.observation), [{} for _ in range(self.num_envs)]

    def _begin_step(self, actions: np.ndarray) -> None:
        buffers = self._pool.take()
        # Kept until the step is done, as the environment may read them in its own thread.
        self._actions = actions = np.ascontiguousarray(actions)
        self._send(actions, buffers)
        self._buffers = buffers

    def _finish_step(self) -> VecEnvStepReturn:
        self._receive()
        buffers, self._buffers = self._buffers, None
        assert buffers is not None
        reward, terminated = buffers.reward[:], buffers.terminated[:]
        dones, ended = self._episodes.count(reward, terminated, buffers.truncated)
        infos = StepInfos(self._episodes.quiet_infos)
        if ended.size:
            mark, final = self._episodes.ended(ended, terminated), views(buffers.final_observation)

            def of_ends() -> Infos:
                final_infos: Infos = [{} for _ in range(len(ended))]
                mark(final_infos, rows(take(final, ended)))
                return final_infos

            infos = StepInfos(self._episodes.quiet_infos, None, ended.tolist(), of_ends)
        return views(buffers.observation), reward, dones, infos

    def close(self) -> None:
        """Close the environment, if it has a method `close`."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()
