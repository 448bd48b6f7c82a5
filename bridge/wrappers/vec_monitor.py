"""VecMonitor in compiled rollouts: returns and lengths of episodes, in the infos and in a file."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from stable_baselines3.common.vec_env import VecMonitor

from bridge.sb3 import Infos
from bridge.wrappers.compiled_wrapper import CompiledWrapper
from jaxenvs import VectorTimeStep, struct


@struct
class MonitorState:
    """Running episodes: the returns so far, float32, and the lengths, int32, each (num_envs,)."""

    episode_return: jax.Array | np.ndarray
    episode_length: jax.Array | np.ndarray


class CompiledMonitor(CompiledWrapper[VecMonitor]):
    """Compiled VecMonitor, which counts the rewards of the wrapper inside it."""

    any_num_envs = divides = can_continue = True

    def state(self) -> MonitorState:
        return MonitorState(self.wrapper.episode_returns, self.wrapper.episode_lengths)

    @staticmethod
    def step(
        state: MonitorState, timestep: VectorTimeStep, action: object
    ) -> tuple[MonitorState, VectorTimeStep, object]:
        totals = MonitorState(state.episode_return + timestep.reward, state.episode_length + 1)
        running = jax.tree.map(lambda total: jnp.where(timestep.done, 0, total), totals)
        return running, timestep, totals

    def write_back(self, state: MonitorState) -> None:
        self.wrapper.episode_returns = np.array(state.episode_return)
        self.wrapper.episode_lengths = np.array(state.episode_length)

    def infos(self, infos: Infos, step: np.ndarray, env_indices: np.ndarray, outputs: MonitorState) -> None:
        monitor, at = self.wrapper, (step, env_indices)
        seconds = round(time.time() - monitor.t_start, 6)
        # NumPy's scalars, as in SB3.
        for info, r, length in zip(infos, outputs.episode_return[at], outputs.episode_length[at], strict=True):
            episode = {"r": r, "l": length, "t": seconds}
            info["episode"] = episode | {name: info[name] for name in monitor.info_keywords}
            monitor.episode_count += 1
            if monitor.results_writer:
                monitor.results_writer.write_row(info["episode"])
