"""StepMemory: the arrays through which a ProcessVecEnv and its workers exchange a step."""

from __future__ import annotations

import os
import pickle
import tempfile
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs
from stable_baselines3.common.vec_env.util import dict_to_obs, obs_space_info

from bridge.host_env.processes.worker_main import shared_arrays
from bridge.sb3 import Space

# Where observations are: one of two slots has those before a step, the other those after it; then the terminal ones.
PLACES = (0, 1, "terminal")


class StepMemory:
    """Arrays with the leading axis `num_envs`, in which each worker writes the rows of its environments.

    Attributes:
      actions, rewards, terminated, truncated: of a step.
      observations: by place, and then by the keys of `obs_space_info`.
      layout: a pickled description that workers need to find the arrays.
    """

    def __init__(self, file: int, num_envs: int, observation_space: Space, action_space: Space) -> None:
        """Allocate the arrays in the memory of a file that the workers share."""
        if not isinstance(action_space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise ValueError(
                f"action_space must be a Box, Discrete, MultiDiscrete or MultiBinary for SB3, got {action_space}."
            )
        self._observation_space = observation_space
        self._action_shape = num_envs, *(action_space.shape or ())
        self._most_bytes = max(8, np.dtype(action_space.dtype).itemsize)  # of a number in an action
        keys, shapes, dtypes = obs_space_info(observation_space)
        fields: dict[object, tuple[str, tuple[int, ...]]] = {
            "rewards": ("f8", (num_envs,)),
            "terminated": ("?", (num_envs,)),
            "truncated": ("?", (num_envs,)),
            # As bytes, because environments get the dtype that the caller passes, as from SB3's SubprocVecEnv.
            "actions": ("u1", (num_envs, self._most_bytes * int(np.prod(action_space.shape or ())))),
            "dtype": ("S8", (num_envs,)),
        }
        for key in keys:
            if shapes[key] is None or np.dtype(dtypes[key]).kind not in "biuf":
                raise ValueError(f"observation_space must hold numbers of a fixed shape, got {observation_space}.")
            for place in PLACES:
                fields[place, key] = np.dtype(dtypes[key]).str, (num_envs, *shapes[key])
        arrays = shared_arrays(file, fields)
        self.rewards, self.terminated, self.truncated, self.actions, self._dtype = (
            arrays[name] for name in ("rewards", "terminated", "truncated", "actions", "dtype")
        )
        self.observations = {place: {key: arrays[place, key] for key in keys} for place in PLACES}
        self._accepts = _dtype_of_actions(action_space)
        self._written: np.dtype[Any] | None = None
        # SB3 samples binary actions as floats.
        self._casting: Any = "unsafe" if isinstance(action_space, spaces.MultiBinary) else "same_kind"
        self.layout = pickle.dumps((fields, keys, self._action_shape[1:]))

    def write_actions(self, actions: npt.ArrayLike) -> None:
        """Write the actions of all environments to where their workers read them, or raise and write nothing."""
        actions = np.asarray(actions)
        if actions.shape != self._action_shape:
            raise ValueError(f"actions must have shape {self._action_shape}, got {actions.shape}.")
        if self._written is None or actions.dtype != self._written:
            is_number = actions.dtype.kind in "biuf" and actions.dtype.itemsize <= self._most_bytes
            if not (is_number and np.can_cast(actions.dtype, self._accepts, self._casting)):
                raise TypeError(f"actions must be {self._accepts} or cast safely to it, got {actions.dtype}.")
            self._dtype[:] = actions.dtype.str.encode()
            self._written = actions.dtype
        rows = np.ascontiguousarray(actions).reshape(len(actions), -1).view(np.uint8)
        self.actions[:, : rows.shape[1]] = rows

    def copy_observations(self, place: int | str, at: slice | int) -> VecEnvObs:
        """Return observations of some environments, or of one, as SB3 expects them."""
        arrays = self.observations[place]
        return dict_to_obs(self._observation_space, {key: array[at].copy() for key, array in arrays.items()})

    def truncate(self, env_indices: range, slot: int) -> None:
        """Truncate the episodes of some environments at the observations in `slot`: their step did not take place."""
        own = slice(env_indices.start, env_indices.stop)
        self.rewards[own], self.terminated[own], self.truncated[own] = 0, False, True
        for key, array in self.observations["terminal"].items():
            array[own] = self.observations[slot][key][own]

    def truncate_ended_step(self, env_indices: range, slot: int) -> None:
        """Truncate the episodes of some environments that continue after a step, whose observations are in `slot`."""
        for index in env_indices:
            if not self.terminated[index] and not self.truncated[index]:
                self.truncated[index] = True
                for key, array in self.observations["terminal"].items():
                    array[index] = self.observations[slot][key][index]


def anonymous_file() -> IO[bytes]:
    """Return a file without a name, in memory if possible, that disappears when no process has it open."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("ProcessVecEnv"), "r+b")
    return tempfile.TemporaryFile()


def _dtype_of_actions(space: Space) -> np.dtype[Any]:
    """Return the dtype to which actions must cast."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return np.dtype(np.int64)
    dtype = np.dtype(space.dtype)
    return np.dtype(np.float32) if isinstance(space, spaces.Box) and dtype.kind in "iu" else dtype
