"""Actions from Stable-Baselines3: checked on the host before any program sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

# A Box action may miss its bounds by what unscaling from [-1, 1] in float32 costs.
TOLERANCE = 1e-5


class ActionChecker:
    """Checks batches of actions against a space, and casts them to what the environments take.

    Calling it costs about 2 us for eight discrete actions: one comparison finds whatever is wrong, and only then
    is it looked at more closely.
    """

    def __init__(self, space: spaces.Space[Any], num_envs: int) -> None:
        """
        Raises:
          TypeError: Stable-Baselines3 has no policies for actions of this space.
        """
        self.space = space
        if isinstance(space, spaces.Box):
            # Half a tolerance of the range at most; infinite bounds stay infinite.
            slack = TOLERANCE * np.maximum(1.0, np.maximum(np.abs(space.low), np.abs(space.high)))
            self._low, self._high = space.low - slack, space.high + slack
            self._dtype = space.dtype
        elif isinstance(space, spaces.Discrete):
            self._low, self._high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
            self._dtype = np.dtype(np.int32)
        elif isinstance(space, spaces.MultiDiscrete):
            self._low, self._high = space.start, space.start + space.nvec - 1
            self._dtype = np.dtype(np.int32)
        elif isinstance(space, spaces.MultiBinary):
            self._low, self._high = np.asarray(0), np.asarray(1)
            self._dtype = np.dtype(np.int8)
        else:
            raise TypeError(f"action_space must be a Box, Discrete, MultiDiscrete or MultiBinary for SB3, got {space}.")
        self._shape = (num_envs, *(space.shape or ()))

    def __call__(self, actions: Any) -> np.ndarray:
        """
        Raises:
          ValueError: the shape is wrong, or an action lies outside of the space or is NaN.
          TypeError: the dtype is wrong.
        """
        actions = np.asarray(actions)
        self.check_shape(actions.shape)
        if not np.can_cast(actions.dtype, self._dtype, casting="same_kind"):
            raise TypeError(f"actions must be {self.space.dtype} or cast safely to it, got {actions.dtype}.")
        # NaN is neither.
        if not ((actions >= self._low) & (actions <= self._high)).all():
            self._raise_for_first(actions)
        checked: np.ndarray = actions.astype(self._dtype, copy=False)
        return checked

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """
        Raises:
          ValueError: this is not the shape of a batch of actions.
        """
        if tuple(shape) != self._shape:
            raise ValueError(f"actions must have shape {self._shape}, got {tuple(shape)}, for {self.space}.")

    def _raise_for_first(self, actions: np.ndarray) -> None:
        inside = (actions >= self._low) & (actions <= self._high)
        lane = int(np.argwhere(~inside)[0][0])
        raise ValueError(f"actions[{lane}] must lie in {self.space}, got {actions[lane]}. No environment was stepped.")
