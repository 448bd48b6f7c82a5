"""StepMemory: the arrays through which a WorkerVecEnv and its workers hand each other a step."""

from __future__ import annotations

import os
import pickle
import tempfile
from typing import IO, Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs
from stable_baselines3.common.vec_env.util import dict_to_obs, obs_space_info

from bridge.host_env.processes.worker_main import shared_arrays

# Where observations are: in one of two slots those before a step, in the other those after it; and the terminal ones.
PLACES = (0, 1, "terminal")


class StepMemory:
    """Arrays with the leading axis `num_envs`, of which each worker writes the rows of its lanes.

    Attributes:
      arrays: all of them, by the names that workers have for them, too.
      actions, rewards, terminated, truncated: of a step.
      observations: by their place and by their keys, those of `obs_space_info`.
      layout: pickled, what a worker must know to find them.
    """

    def __init__(
        self, file: int, num_envs: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> None:
        """
        Args:
          file: the descriptor of the file whose memory it is, shared with the workers; or PRIVATE.
          observation_space, action_space: of one lane.

        Raises:
          ValueError: Stable-Baselines3 has no such actions, or observations are no numbers of a fixed shape.
        """
        if not isinstance(action_space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise ValueError(
                f"action_space must be a Box, Discrete, MultiDiscrete or MultiBinary for SB3, got {action_space}."
            )
        self._observation_space = observation_space
        keys, shapes, dtypes = obs_space_info(observation_space)
        fields: dict[Any, tuple[str, tuple[int, ...]]] = {
            "rewards": ("f8", (num_envs,)),
            "terminated": ("?", (num_envs,)),
            "truncated": ("?", (num_envs,)),
            "actions": (np.dtype(action_space.dtype).str, (num_envs, *(action_space.shape or ()))),
        }
        for key in keys:
            if shapes[key] is None or np.dtype(dtypes[key]).kind not in "biuf":
                raise ValueError(f"observation_space must hold numbers of a fixed shape, got {observation_space}.")
            for place in PLACES:
                fields[place, key] = np.dtype(dtypes[key]).str, (num_envs, *shapes[key])
        self.arrays = arrays = shared_arrays(file, fields)
        self.rewards, self.terminated, self.truncated, self.actions = (
            arrays[name] for name in ("rewards", "terminated", "truncated", "actions")
        )
        self.observations = {place: {key: arrays[place, key] for key in keys} for place in PLACES}
        # SB3 draws binary actions as floats.
        self._casting: Any = "unsafe" if isinstance(action_space, spaces.MultiBinary) else "same_kind"
        self.layout = pickle.dumps((fields, keys))

    def write_actions(self, actions: Any) -> None:
        """Write the actions of all lanes to where their workers read them.

        Raises:
          ValueError, TypeError: they have another shape, or a dtype that does not fit. Nothing was written.
        """
        actions = np.asarray(actions)
        if actions.shape != self.actions.shape:
            raise ValueError(f"actions must have shape {self.actions.shape}, got {actions.shape}.")
        np.copyto(self.actions, actions, casting=self._casting)

    def copy_observations(self, place: int | str, at: slice | int) -> VecEnvObs:
        """Observations of some lanes, or of one, as SB3 has them."""
        arrays = self.observations[place]
        return dict_to_obs(self._observation_space, {key: array[at].copy() for key, array in arrays.items()})

    def truncate(self, lanes: range, slot: int) -> None:
        """Write that a step cut off the episodes of some lanes where they were, without having taken place.

        Args:
          slot: where their last observations are.
        """
        own = slice(lanes.start, lanes.stop)
        self.rewards[own], self.terminated[own], self.truncated[own] = 0, False, True
        for key, array in self.observations["terminal"].items():
            array[own] = self.observations[slot][key][own]

    def truncate_ended_step(self, lanes: range, slot: int) -> None:
        """Cut off the episodes of some lanes that go on after a step which has taken place.

        Args:
          slot: where the observations of that step are.
        """
        for lane in lanes:
            if not self.terminated[lane] and not self.truncated[lane]:
                self.truncated[lane] = True
                for key, array in self.observations["terminal"].items():
                    array[lane] = self.observations[slot][key][lane]


def anonymous_file() -> IO[bytes]:
    """A file without a name, in memory where the system has such files: it is gone with the last who has it."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("ProcessVecEnv"), "r+b")
    return tempfile.TemporaryFile()
