"""The infos of a step: of lanes whose episode goes on, of those whose episode ended, and of what a reset told."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from bridge.sb3 import Infos
from bridge.vec_env.programs import Outputs

# Of many arrays with the same leading axes, some: (lane,) of one step, or (step, lane) of many. () is all of them.
Index = tuple[np.ndarray, ...]


def ended_infos(outputs: Outputs, at: Index, t_start: float) -> Infos:
    """The infos of episodes that ended, in the order of `at`.

    The environment's own, `TimeLimit.truncated` (truncated and not terminated, as SB3 means it), `episode` as
    Monitor's, and `terminal_observation` in memory of its own.

    Args:
      outputs: of one step, with the leading axis `num_envs`, or of many, (n_steps, num_envs): pytrees of NumPy arrays,
        of which `terminated`, `episode_return`, `episode_length`, `final_info` and `final_observation` are read. The
        latter in the dtypes in which the infos are to have it; without it they have no `terminal_observation`.
      at: where episodes ended, in chronological order: by step, then by lane.
      t_start: the time from which `episode["t"]` counts, as VecMonitor's attribute of this name.
    """
    returns, lengths = outputs.episode_return[at].tolist(), outputs.episode_length[at].tolist()
    infos = info_rows(outputs.final_info, at, len(returns))
    mark_ended(infos, outputs.terminated[at].tolist(), _rows(outputs.final_observation, at))
    mark_episodes(infos, returns, lengths, round(time.time() - t_start, 6))
    return infos


def mark_ended(infos: Infos, terminated: list[bool], observations: list[Any]) -> None:
    """Write `TimeLimit.truncated` and `terminal_observation` into the infos of episodes that ended.

    Args:
      observations: the last ones, each in memory of its own; none at all if the infos are to have none.
    """
    for info, is_terminal in zip(infos, terminated):
        info["TimeLimit.truncated"] = not is_terminal
    for info, observation in zip(infos, observations):
        info["terminal_observation"] = observation


def mark_episodes(infos: Infos, returns: list[float], lengths: list[int], seconds: float) -> None:
    """Write `episode`, as Monitor's, into the infos of episodes that ended.

    Args:
      seconds: what `episode["t"]` is to be.
    """
    for info, r, length in zip(infos, returns, lengths):
        info["episode"] = {"r": r, "l": length, "t": seconds}


def update_reset_infos(reset_infos: Infos, info: Any, at: Index) -> None:
    """Put what environments told as their next episodes began into a VecEnv's `reset_infos`.

    Args:
      reset_infos: of all lanes.
      info: of one step or of many.
      at: where an episode ended, and so the next one began. Of a lane that is there more than once, the last counts.
    """
    lane = at[-1]
    if len(at) > 1:
        lane, from_the_end = np.unique(lane[::-1], return_index=True)
        at = tuple(index[::-1][from_the_end] for index in at)
    for i, row in zip(lane.tolist(), info_rows(info, at, len(lane))):
        reset_infos[i] = row


def info_rows(info: Any, at: Index, count: int) -> Infos:
    """What environments tell, `count` times at `at`, as so many dicts of Python numbers and arrays.

    Args:
      info: a pytree of arrays.
    """
    if not info:  # as almost always, and `jax.tree` takes its time
        return [{} for _ in range(count)]
    leaves, structure = jax.tree.flatten(info)
    arrays = [np.array(leaf[at]) for leaf in leaves]
    columns = [array.tolist() if array.ndim == 1 else list(array) for array in arrays]
    rows = zip(*columns, strict=True) if columns else [()] * count
    return [jax.tree.unflatten(structure, row) for row in rows]


def _rows(observation: Any, at: Index) -> list[Any]:
    """Observations one by one, each in memory of its own."""
    if isinstance(observation, np.ndarray):
        return [row.copy() for row in observation[at]]
    leaves, structure = jax.tree.flatten(observation)
    rows = zip(*[leaf[at] for leaf in leaves], strict=True)
    return [jax.tree.unflatten(structure, [row.copy() for row in parts]) for parts in rows]


class QuietInfos:
    """Makes the infos of a step in which no episode ended, a list of dicts for each call.

    Thousands of new dicts a step cost more than the step does. So environments without an info of their own get the
    dicts of the step before, but for those that somebody wrote into.

    Attributes:
      num_envs: how many.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._written: set[int] = set()
        self._infos: Infos = [QuietInfo.of_lane(lane, self._written) for lane in range(num_envs)]

    def __call__(self, info: Any) -> Infos:
        """The infos of a step in which no episode ended, a dict for each lane.

        Args:
          info: what the environments tell, arrays with the leading axis `num_envs`; {} is nothing.
        """
        if info:
            infos = info_rows(info, (), len(self._infos))
            for row in infos:
                row["TimeLimit.truncated"] = False
            return infos
        if self._written:
            for lane in self._written.copy():
                self._infos[lane] = QuietInfo.of_lane(lane, self._written)
            self._written.clear()
        return self._infos.copy()

    def __reduce__(self) -> Any:
        return QuietInfos, (self.num_envs,)


class QuietInfo(dict[str, Any]):
    """An info that says which lane is its own once somebody writes into it. Its copies and pickles are plain dicts."""

    _lane: int
    _written: set[int] | None = None

    @classmethod
    def of_lane(cls, lane: int, written: set[int]) -> QuietInfo:
        """The info of a lane in which nothing happened.

        Args:
          written: is told of the lane.
        """
        info = cls({"TimeLimit.truncated": False})
        info._lane, info._written = lane, written
        return info

    def _note(self) -> None:
        if self._written is not None:
            self._written.add(self._lane)

    def __setitem__(self, key: str, value: Any) -> None:
        self._note()
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._note()
        super().__delitem__(key)

    def __ior__(self, other: Any) -> QuietInfo:  # type: ignore[override, misc]
        self.update(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._note()
        super().update(*args, **kwargs)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._note()
        return super().setdefault(key, default)

    def pop(self, *args: Any) -> Any:
        self._note()
        return super().pop(*args)

    def popitem(self) -> tuple[str, Any]:
        self._note()
        return super().popitem()

    def clear(self) -> None:
        self._note()
        super().clear()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)
