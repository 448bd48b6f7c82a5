"""Episodes of environments that are stepped on the host: their returns and lengths, and the infos of a step."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from bridge.host_env.processes.worker_main import Told
from bridge.sb3 import Infos
from bridge.vec_env.infos import QuietInfos, mark_ended, mark_episodes


class Ended(NamedTuple):
    """The episodes that ended in a step, as their infos report them: one row for each.

    Attributes:
      lanes: the indices of the environments, int.
      terminated: bools of the step, for all environments.
      returns, lengths: of the episodes; `returns` is None if the environments write `episode` themselves.
      seconds: for `episode["t"]`.
      told: the positions in `lanes` to which `returns` and `lengths` belong; None if they belong to all.
    """

    lanes: np.ndarray
    terminated: np.ndarray
    returns: np.ndarray | None
    lengths: np.ndarray
    seconds: float
    told: np.ndarray | None = None

    def mark(self, infos: Infos, observations: list[Any]) -> None:
        """Write `TimeLimit.truncated`, `terminal_observation` and `episode` into the infos of these environments.

        Args:
          infos: the infos of the last step, a dict for each of the environments.
          observations: their last observations, each in its own memory.
        """
        mark_ended(infos, self.terminated[self.lanes].tolist(), observations)
        if self.returns is not None:
            if self.told is not None:
                infos = [infos[at] for at in self.told.tolist()]
            mark_episodes(infos, self.returns.tolist(), self.lengths.tolist(), round(self.seconds, 6))


class Episodes:
    """Counter of the returns and lengths of the current episodes, for all environments at once.

    No loop runs over the environments whose episode continues.

    Attributes:
      quiet_infos: makes the infos of environments that have nothing to report.
      t_start: the time from which `episode["t"]` counts, as in VecMonitor.
    """

    def __init__(self, num_envs: int, monitored: bool = False) -> None:
        """Start counting at zero in all environments.

        Args:
          num_envs: the number of environments.
          monitored: True if the environments write `episode` themselves, as in a Monitor, so that nothing is counted.
        """
        self._returns = np.zeros(num_envs)
        self._begun = np.zeros(num_envs, np.int64)  # the step before the first of the episode
        self._steps = 0
        self._monitored = monitored
        self.quiet_infos = QuietInfos(num_envs)
        self.t_start = time.time()

    def begin(self) -> None:
        """Start counting anew after a reset of all environments."""
        self._returns[:] = 0
        self._begun[:] = self._steps

    def count(
        self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Count a step of all environments.

        Args:
          rewards, terminated, truncated: numbers and bools, (num_envs,).

        Returns:
          dones, bool (num_envs,), and the indices of the environments whose episode ended, int (n,), to pass to
            `ended`.
        """
        self._steps += 1
        if not self._monitored:
            np.add(self._returns, rewards, out=self._returns)
        dones = terminated | truncated
        return dones, dones.nonzero()[0]

    def ended(self, lanes: np.ndarray, terminated: np.ndarray, whole: np.ndarray | None = None) -> Ended:
        """Return the episodes that ended, and start counting the next ones of these environments.

        Args:
          lanes: the indices of the environments whose episode ended.
          terminated: bools of the step, for all environments.
          whole: a bool for each of these environments, False where a life of an Atari game ended but the counted
            game continues. None is all True.
        """
        told = None if whole is None else whole.nonzero()[0]
        counted = lanes if told is None else lanes[told]
        lengths = self._steps - self._begun[counted]
        self._begun[counted] = self._steps
        returns = None
        if not self._monitored:
            returns = self._returns[counted]
            self._returns[counted] = 0
        return Ended(lanes, terminated, returns, lengths, time.time() - self.t_start, told)

    def step(
        self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, Infos]:
        """Call `count`, and return infos of a step in which no episode ended, for callers that fill in all infos."""
        return *self.count(rewards, terminated, truncated), self.quiet_infos({})

    def end(self, lanes: np.ndarray, infos: Infos, terminated: np.ndarray, observations: list[Any]) -> None:
        """Call `ended`, and write the result into infos. See `ended` and `Ended.mark` for the arguments."""
        self.ended(lanes, terminated).mark(infos, observations)


def infos_of_step(
    episodes: Episodes,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    told: Told,
    reset_infos: Infos,
) -> tuple[np.ndarray, Infos]:
    """Return the dones and infos of a step, as SB3 expects them.

    Args:
      episodes: the counter of all environments' episodes, which counts this step.
      rewards, terminated, truncated: (num_envs,).
      told: the environments' infos; its terminal observations must be copies.
      reset_infos: a dict for each environment; the dicts of environments whose episode ended are replaced.
    """
    dones, ended, infos = episodes.step(rewards, terminated, truncated)
    for lane, info in told.infos.items():
        info["TimeLimit.truncated"] = False
        infos[lane] = info
    if ended.size:
        lanes = ended.tolist()
        last = [told.infos.get(lane, {}) for lane in lanes]
        episodes.end(ended, last, terminated, [told.terminal[lane] for lane in lanes])
        for lane, info in zip(lanes, last):
            infos[lane] = info
            reset_infos[lane] = told.begun.get(lane, {})
    return dones, infos
