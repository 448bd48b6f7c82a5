"""The episodes of lanes that are stepped on the host: their returns and lengths, and what infos tell of them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bridge.vec_env.infos import QuietInfos, mark_ended, mark_episodes


class Episodes:
    """Returns and lengths of the episodes under way, lane by lane, and the infos of a step.

    Nothing here loops over lanes whose episode goes on.

    Attributes:
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
        self._quiet_infos = QuietInfos(num_envs)
        self.t_start = time.time()

    def begin(self) -> None:
        """All lanes were reset."""
        self._returns[:] = 0
        self._begun[:] = self._steps

    def step(
        self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Count a step of all lanes.

        Args:
          rewards, terminated, truncated: numbers and bools, (num_envs,).

        Returns:
          dones: bool (num_envs,).
          ended: the lanes whose episode ended, int (n,).
          infos: those of a step in which no episode ended, a list of one's own; see QuietInfos. `end` makes those of
            the lanes that ended.
        """
        self._steps += 1
        if not self._monitored:
            self._returns += rewards
        dones = terminated | truncated
        return dones, dones.nonzero()[0], self._quiet_infos({})

    def end(
        self, ended: np.ndarray, infos: list[dict[str, Any]], terminated: np.ndarray, observations: list[Any]
    ) -> None:
        """Finish the infos of the lanes that ended, and begin to count anew in them.

        Args:
          ended: the lanes.
          infos: what their environments told in the last step, a dict for each of them. They get
            `TimeLimit.truncated`, `terminal_observation` and `episode`.
          terminated: of the step, (num_envs,).
          observations: their last ones, each in memory of its own.
        """
        mark_ended(infos, terminated[ended].tolist(), observations)
        if not self._monitored:
            lengths = self._steps - self._begun[ended]
            mark_episodes(infos, self._returns[ended].tolist(), lengths.tolist(), self.t_start)
            self._returns[ended] = 0
        self._begun[ended] = self._steps
