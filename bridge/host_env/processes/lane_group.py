"""Lanes of a WorkerVecEnv that step together, and what a step of theirs came to."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from bridge.host_env.batches import concatenate
from bridge.host_env.processes.worker_handle import Deadline, WorkerHandle
from bridge.host_env.processes.worker_main import Told


@dataclasses.dataclass(eq=False)
class LaneGroup:
    """The lanes of some workers, one after another.

    Attributes:
      workers: theirs.
      slot: where their last observations are; the next come into the other.
      told: of the step under way.
      pending: the workers that have not ended it.
      deadline: of it.
    """

    workers: list[WorkerHandle]
    slot: int = 0
    told: Told | None = None
    pending: list[WorkerHandle] = dataclasses.field(default_factory=list)
    deadline: Deadline | None = None

    def __post_init__(self) -> None:
        self.lanes = slice(self.workers[0].lanes.start, self.workers[-1].lanes.stop)


class LaneStep(NamedTuple):
    """A step of a group. Arrays of its lanes, in memory of their own; what was told is by the numbers of all lanes."""

    observations: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    told: Told

    @classmethod
    def join(cls, steps: list[LaneStep]) -> LaneStep:
        """The step of several groups, in the order of their lanes."""
        if len(steps) == 1:
            return steps[0]
        observations, rewards, terminated, truncated, told = zip(*steps)
        all_told = Told({}, {}, {})
        for whole, *parts in zip(all_told, *told):
            for part in parts:
                whole.update(part)
        arrays = concatenate(rewards), concatenate(terminated), concatenate(truncated)
        return cls(concatenate(observations), *arrays, all_told)
