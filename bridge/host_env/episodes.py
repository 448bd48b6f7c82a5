"""Episodes of environments that are stepped on the host: their returns and lengths, and the infos of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from bridge.host_env.processes.worker_main import StepReport
from bridge.sb3 import Infos
from bridge.vec_env.infos import QuietInfos, mark_ended, mark_episodes


class EpisodeStatistics:
    """Counter of the returns and lengths of the current episodes, for all environments at once.

    No loop runs over the environments whose episode continues.

    Attributes:
      monitored: whether a Monitor counts instead.
      quiet_infos: makes the infos of environments that have nothing to report.
      t_start: the time from which `episode["t"]` counts, as in VecMonitor.
    """

    def __init__(self, num_envs: int, monitored: bool = False) -> None:
        """Start counting at zero. Nothing is counted if the environments are `monitored`: a Monitor does it."""
        self._returns = np.zeros(num_envs)
        self._begun = np.zeros(num_envs, np.int64)  # the step before the first of the episode
        self._steps = 0
        self.monitored = monitored
        self.quiet_infos = QuietInfos(num_envs)
        self.t_start = time.time()

    def begin(self, at: Sequence[int] | slice = slice(None)) -> None:
        """Start counting anew after a reset of some environments, by default of all."""
        self._returns[at] = 0
        self._begun[at] = self._steps

    def count(
        self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Count a step of all environments; return dones, and the indices of the environments whose episode ended."""
        self._steps += 1
        if not self.monitored:
            np.add(self._returns, rewards, out=self._returns)
        dones = terminated | truncated
        return dones, dones.nonzero()[0]

    def ended(
        self, env_indices: np.ndarray, terminated: np.ndarray, whole: np.ndarray | None = None
    ) -> Callable[[Infos, Sequence[object]], None]:
        """Start counting the next episodes of environments whose episode ended.

        Args:
          env_indices: the indices of these environments.
          terminated: bools of the step, for all environments.
          whole: a bool for each of these environments, False where a life of an Atari game ended but the counted
            game continues. None is all True.

        Returns:
          A function that may be called at any later time. It writes `TimeLimit.truncated`, `terminal_observation` and
            `episode` into the infos of these environments, given their last observations, each in its own memory.
        """
        counted = env_indices if whole is None else env_indices[whole]
        is_terminal = terminated[env_indices].tolist()
        returns = [round(each, 6) for each in self._returns[counted].tolist()]  # as Monitor does
        lengths = (self._steps - self._begun[counted]).tolist()
        self._begun[counted], self._returns[counted] = self._steps, 0
        seconds = round(time.time() - self.t_start, 6)

        def mark(infos: Infos, observations: Sequence[object]) -> None:
            mark_ended(infos, is_terminal, observations)
            if not self.monitored:
                of_episodes = infos if whole is None else [info for info, is_whole in zip(infos, whole) if is_whole]
                mark_episodes(of_episodes, returns, lengths, seconds)

        return mark


def infos_of_step(
    episodes: EpisodeStatistics,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    report: StepReport,
    reset_infos: Infos,
) -> tuple[np.ndarray, Infos]:
    """Return the dones and infos of a step, as SB3 expects them, and replace `reset_infos` where an episode began.

    The terminal observations in `report` must be copies.
    """
    dones, ended = episodes.count(rewards, terminated, truncated)
    infos = episodes.quiet_infos({})
    for index, info in report.infos.items():
        info["TimeLimit.truncated"] = False
        infos[index] = info
    if ended.size:
        env_indices = ended.tolist()
        last_infos = [report.infos.get(index, {}) for index in env_indices]
        episodes.ended(ended, terminated)(last_infos, [report.terminal[index] for index in env_indices])
        for index, info in zip(env_indices, last_infos):
            infos[index] = info
            reset_infos[index] = report.begun.get(index, {})
    return dones, infos
