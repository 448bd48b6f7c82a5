"""The infos of a step: of environments whose episode continues, whose episode ended, and from resets."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bridge.sb3 import Infos
from bridge.vec_env.compiled_functions import Outputs

# Selects elements of arrays with the same leading axes: (environment,) for one step, (step, environment) for many. ()
# selects all.
Index = tuple[np.ndarray, ...]


def ended_infos(outputs: Outputs, at: Index, t_start: float) -> Infos:
    """Return the infos of the episodes that ended, in the order of `at`.

    Each has the environment's own info, `TimeLimit.truncated` (truncated and not terminated, as in SB3), `episode` as
    Monitor writes it, and `terminal_observation` in its own memory.

    Args:
      outputs: of one step, with the leading axis `num_envs`, or of many, (n_steps, num_envs), as NumPy arrays.
        `final_observation` already has the dtypes of `terminal_observation`; if it is empty, the infos have none.
      at: where episodes ended, in chronological order: by step, then by environment.
      t_start: the time from which `episode["t"]` counts, as VecMonitor's attribute of this name.
    """
    returns, lengths = outputs.episode_return[at].tolist(), outputs.episode_length[at].tolist()
    infos = info_rows(outputs.final_info, at, len(returns))
    mark_ended(infos, outputs.terminated[at].tolist(), _rows(outputs.final_observation, at))
    mark_episodes(infos, returns, lengths, round(time.time() - t_start, 6))
    return infos


def mark_ended(infos: Infos, terminated: list[bool], observations: Sequence[object]) -> None:
    """Write `TimeLimit.truncated` and `terminal_observation` into the infos of episodes that ended.

    `observations` are in their own memory, or empty if the infos should have none.
    """
    for info, is_terminal in zip(infos, terminated):
        info["TimeLimit.truncated"] = not is_terminal
    for info, observation in zip(infos, observations):
        info["terminal_observation"] = observation


def mark_episodes(infos: Infos, returns: list[float], lengths: list[int], seconds: float) -> None:
    """Write `episode`, as Monitor does, into the infos of episodes that ended."""
    for info, r, length in zip(infos, returns, lengths):
        info["episode"] = {"r": r, "l": length, "t": seconds}


def update_reset_infos(reset_infos: Infos, info: object, at: Index) -> None:
    """Write the infos with which the next episodes began into a VecEnv's `reset_infos`, a dict for each environment.

    They began in `at`, where others ended. If an environment occurs there more than once, the last episode counts.
    """
    env_indices = at[-1]
    if len(at) > 1:
        env_indices, from_the_end = np.unique(env_indices[::-1], return_index=True)
        at = tuple(index[::-1][from_the_end] for index in at)
    for i, row in zip(env_indices.tolist(), info_rows(info, at, len(env_indices))):
        reset_infos[i] = row


def info_rows(info: object, at: Index, count: int) -> Infos:
    """Return the `count` infos that `at` selects from a pytree of arrays, as dicts of Python numbers and arrays."""
    if not info:  # the usual case, in which `jax.tree` would only take time
        return [{} for _ in range(count)]
    leaves, structure = jax.tree.flatten(info)
    arrays = [np.array(leaf[at]) for leaf in leaves]
    columns = [array.tolist() if array.ndim == 1 else list(array) for array in arrays]
    rows = zip(*columns, strict=True) if columns else [()] * count
    return [jax.tree.unflatten(structure, row) for row in rows]


def _rows(observation: object, at: Index) -> list[object]:
    """Return a list of single observations, each in its own memory."""
    if isinstance(observation, np.ndarray):
        return [row.copy() for row in observation[at]]
    leaves, structure = jax.tree.flatten(observation)
    rows = zip(*[leaf[at] for leaf in leaves], strict=True)
    return [jax.tree.unflatten(structure, [row.copy() for row in parts]) for parts in rows]


class QuietInfos:
    """Callable that makes the infos of a step in which no episode ended: a list of dicts for each call.

    Thousands of new dicts per step cost more than the step itself. So if environments have no info, they get the dicts
    of the previous step again, except for dicts that user code wrote into.

    Attributes:
      num_envs: the number of environments.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._written: set[int] = set()
        self._infos: Infos = [QuietInfo.of_env(index, self._written) for index in range(num_envs)]

    def __call__(self, info: object) -> Infos:
        """Return a dict for each environment from their infos: arrays with the leading axis `num_envs`, or {}."""
        if info:
            infos = info_rows(info, (), len(self._infos))
            for row in infos:
                row["TimeLimit.truncated"] = False
            return infos
        if self._written:
            for index in self._written.copy():
                self._infos[index] = QuietInfo.of_env(index, self._written)
            self._written.clear()
        return self._infos.copy()

    def __reduce__(self) -> tuple[type[QuietInfos], tuple[int]]:
        return QuietInfos, (self.num_envs,)


class QuietInfo(dict[str, Any]):
    """Info dict that records the index of its environment at a write. Copies and pickles are plain dicts."""

    _index: int
    _written: set[int] | None = None

    @classmethod
    def of_env(cls, index: int, written: set[int]) -> QuietInfo:
        """Return an info with only `TimeLimit.truncated`, which adds `index` to `written` at the first write."""
        info = cls({"TimeLimit.truncated": False})
        info._index, info._written = index, written
        return info

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[object]]:
        return dict, (dict(self),)


def _recording(method: Callable[..., object]) -> Callable[..., object]:
    """Return a method of dict that writes, for a QuietInfo, which records the write first."""

    @functools.wraps(method)
    def write(info: QuietInfo, *args: object, **kwargs: object) -> object:
        if info._written is not None:
            info._written.add(info._index)
        return method(info, *args, **kwargs)

    return write


for _name in ("__setitem__", "__delitem__", "__ior__", "update", "setdefault", "pop", "popitem", "clear"):
    setattr(QuietInfo, _name, _recording(getattr(dict, _name)))
