"""The steps of a rollout that was taken in actors: what each tells of its lanes, and how that becomes steps of all."""

from __future__ import annotations

import pickle
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env.util import dict_to_obs

from bridge.host_env.processes.lane_group import LaneStep
from bridge.host_env.processes.step_memory import StepMemory
from bridge.host_env.processes.worker_main import Told
from bridge.observations import map_parts


class LaneSteps(NamedTuple):
    """Steps of some lanes.

    Attributes:
      rows: (n_steps, lanes, ...), of `actions`, `rewards`, `terminated`, `truncated`, and of `observations` by that and
        their keys.
      told: of each step, by the numbers of all lanes.
    """

    rows: dict[Any, np.ndarray]
    told: list[Told]

    @classmethod
    def of_actor(
        cls, rows: dict[Any, np.ndarray], payloads: list[bytes], lanes: range, space: spaces.Space[Any]
    ) -> LaneSteps:
        """As ActorMain.roll_out gives them.

        Args:
          space: of an observation.
        """
        ends = {name[1]: iter(array) for name, array in rows.items() if name[0] == "terminal"}
        told = []
        for step, payload in enumerate(payloads):
            ended = (rows["terminated"][step] | rows["truncated"][step]).nonzero()[0].tolist()
            terminal = {
                at: dict_to_obs(space, {key: np.array(next(each)) for key, each in ends.items()}) for at in ended
            }
            infos, begun = pickle.loads(payload) if payload else ({}, {})
            numbered = [{lanes[at]: one for at, one in part.items()} for part in (infos, terminal, begun)]
            told.append(Told._make(numbered))
        return cls({name: array for name, array in rows.items() if name[0] != "terminal"}, told)

    @classmethod
    def cut_off(
        cls, memory: StepMemory, lanes: range, slots: tuple[int, int], action: np.ndarray, infos: list[dict[str, Any]]
    ) -> LaneSteps:
        """The one step in which the episodes of lanes were truncated where they were, and others have begun.

        Args:
          slots: where their last observations are, and the first of the new episodes.
          action: that was to be taken.
          infos: of the new episodes.
        """
        own, last = slice(lanes.start, lanes.stop), slots[0]
        nothing = np.zeros((1, len(lanes)))
        rows = {"actions": action[None], "rewards": nothing, "terminated": nothing > 0, "truncated": nothing == 0}
        first = {("observations", key): array[own][None].copy() for key, array in memory.observations[slots[1]].items()}
        terminal = {lane: memory.copy_observations(last, lane) for lane in lanes}
        return cls({**rows, **first}, [Told({}, terminal, dict(zip(lanes, infos)))])

    def then(self, later: LaneSteps) -> LaneSteps:
        """These steps, and others of the same lanes after them."""
        if not later.told:
            return self
        rows = {name: np.concatenate([array, later.rows[name]]) for name, array in self.rows.items()}
        return LaneSteps(rows, self.told + later.told)

    def steps(self, space: spaces.Space[Any]) -> list[LaneStep]:
        """One by one, with observations as SB3 has them."""
        rows = self.rows
        observations = dict_to_obs(space, {name[1]: rows[name] for name in rows if name[0] == "observations"})
        rewards, terminated, truncated = rows["rewards"], rows["terminated"], rows["truncated"]
        return [
            LaneStep(map_parts(itemgetter(step), observations), rewards[step], terminated[step], truncated[step], told)
            for step, told in enumerate(self.told)
        ]


def side_by_side(parts: list[LaneSteps]) -> LaneSteps:
    """The same steps of several lanes, in memory of their own."""
    rows = {name: np.concatenate([part.rows[name] for part in parts], 1) for name in parts[0].rows}
    told = [Told({}, {}, {}) for _ in parts[0].told]
    for part in parts:
        for whole, each in zip(told, part.told):
            for mine, other in zip(whole, each):
                mine.update(other)
    return LaneSteps(rows, told)
