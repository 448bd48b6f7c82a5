"""The episodes of lanes that are stepped on the host: their returns and lengths, and what infos tell of them."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from bridge.host_env.processes.worker_main import Told
from bridge.sb3 import Infos
from bridge.vec_env.infos import QuietInfos, mark_ended, mark_episodes


class Ended(NamedTuple):
    """What the infos tell of episodes that ended in a step, one row for each.

    Attributes:
      lanes: where, int.
      terminated: of the step, all lanes.
      returns, lengths: of the episodes; None where the environments tell `episode` themselves.
      seconds: for `episode["t"]`.
      told: which of them `returns` and `lengths` are of, as places in `lanes`; all if None.
    """

    lanes: np.ndarray
    terminated: np.ndarray
    returns: np.ndarray | None
    lengths: np.ndarray
    seconds: float
    told: np.ndarray | None = None

    def mark(self, infos: Infos, observations: list[Any]) -> None:
        """Write `TimeLimit.truncated`, `terminal_observation` and `episode` into the infos of these lanes.

        Args:
          infos: what their environments told in the last step, a dict for each of the lanes.
          observations: their last ones, each in memory of its own.
        """
        mark_ended(infos, self.terminated[self.lanes].tolist(), observations)
        if self.returns is not None:
            if self.told is not None:
                infos = [infos[at] for at in self.told.tolist()]
            mark_episodes(infos, self.returns.tolist(), self.lengths.tolist(), round(self.seconds, 6))


class Episodes:
    """Returns and lengths of the episodes under way, lane by lane, and the infos of a step.

    Nothing here loops over lanes whose episode goes on.

    Attributes:
      quiet_infos: makes the infos of lanes of which there is nothing to tell.
      t_start: the time from which `episode["t"]` counts, as VecMonitor's.
    """

    def __init__(self, num_envs: int, monitored: bool = False) -> None:
        """
        Args:
          monitored: the environments write `episode` themselves, as those in a Monitor do; so nothing is counted.
        """
        self._returns = np.zeros(num_envs)
        self._begun = np.zeros(num_envs, np.int64)  # the step before the first of the episode
        self._steps = 0
        self._monitored = monitored
        self.quiet_infos = QuietInfos(num_envs)
        self.t_start = time.time()

    def begin(self) -> None:
        """All lanes were reset."""
        self._returns[:] = 0
        self._begun[:] = self._steps

    def count(
        self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Count a step of all lanes.

        Args:
          rewards, terminated, truncated: numbers and bools, (num_envs,).

        Returns:
          dones, bool (num_envs,), and the lanes whose episode ended, int (n,), of which `ended` is to be told.
        """
        self._steps += 1
        if not self._monitored:
            np.add(self._returns, rewards, out=self._returns)
        dones = terminated | truncated
        return dones, dones.nonzero()[0]

    def ended(self, lanes: np.ndarray, terminated: np.ndarray, whole: np.ndarray | None = None) -> Ended:
        """What there is to tell of the lanes that ended; from now on, their next episodes are counted.

        Args:
          whole: bool (len(lanes),), where what is counted ended too: a game, and not one of its lives. None is all.
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
        """`count`, and the infos of a step in which no episode ended: for those who visit every lane anyway."""
        return *self.count(rewards, terminated, truncated), self.quiet_infos({})

    def end(self, lanes: np.ndarray, infos: Infos, terminated: np.ndarray, observations: list[Any]) -> None:
        """`ended`, written into infos at once; the arguments are those of `ended` and of `Ended.mark`."""
        self.ended(lanes, terminated).mark(infos, observations)


def infos_of_step(
    episodes: Episodes,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    told: Told,
    reset_infos: Infos,
) -> tuple[np.ndarray, Infos]:
    """The dones and infos of a step, as SB3 has them, of what environments told.

    Args:
      episodes: of all lanes; they count the step.
      rewards, terminated, truncated: (num_envs,).
      told: the terminal observations are of one's own.
      reset_infos: those of lanes whose episode ended are replaced.
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
