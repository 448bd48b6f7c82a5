"""Actions from Stable-Baselines3: checked on the host before any program sees them, and as SB3 gives them to others."""

from __future__ import annotations

from typing import Any, Literal

import jax
import numpy as np
from gymnasium import spaces

from jaxenvs.spaces import leaf_bounds

# A Box action may miss its bounds by what unscaling from [-1, 1] in float32 costs.
TOLERANCE = 1e-5


class ActionChecker:
    """Checks batches of actions against a space, and casts them to what the environments take.

    One comparison finds whatever is wrong, and only then is it looked at more closely: this runs in every step.
    """

    def __init__(self, space: spaces.Space[Any], num_envs: int, dtype: Any = None) -> None:
        """
        Args:
          dtype: what the environments take; JAX's for that of the space if not given.

        Raises:
          TypeError: Stable-Baselines3 has no policies for actions of this space.
        """
        if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise TypeError(f"action_space must be a Box, Discrete, MultiDiscrete or MultiBinary for SB3, got {space}.")
        self.space = space
        self._low, self._high = leaf_bounds(space)
        self.dtype = np.dtype(jax.dtypes.canonicalize_dtype(space.dtype) if dtype is None else dtype)
        # SB3 draws binary actions as floats.
        self._casting: Literal["same_kind", "unsafe"] = (
            "unsafe" if isinstance(space, spaces.MultiBinary) else "same_kind"
        )
        if self.dtype.kind == "f":
            slack = TOLERANCE * np.maximum(1.0, np.maximum(np.abs(self._low), np.abs(self._high)))
            self._low, self._high = self._low - slack, self._high + slack
        # Where the least is 0, one comparison will do: a negative number is a huge one without its sign.
        is_counted = self.dtype.kind in "iu" and not self._low.any()
        self._unsigned_high = self._high.astype(f"u{self.dtype.itemsize}") if is_counted else None
        self._accepted: set[np.dtype[Any]] = set()
        self._shape = (num_envs, *(space.shape or ()))

    def __call__(self, actions: Any) -> np.ndarray:
        """The actions of all lanes in the dtype that environments take, if they are such.

        Raises:
          ValueError: the shape is wrong, or an action lies outside of the space or is NaN.
          TypeError: the dtype is wrong.
        """
        try:
            actions = np.asarray(actions)
        except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors that require a gradient, ...
            raise ValueError(f"actions must have shape {self._shape}, got {actions!r}.") from None
        self.check_shape(actions.shape)
        if actions.dtype not in self._accepted:  # as asking NumPy every time is slow
            if not np.can_cast(actions.dtype, self.dtype, self._casting):
                raise TypeError(f"actions must be {self.space.dtype} or cast safely to it, got {actions.dtype}.")
            self._accepted.add(actions.dtype)
        inside = self._inside(actions)
        if np.count_nonzero(inside) < inside.size:  # half the time of `all`
            lane = int(np.argwhere(~inside)[0][0])
            raise ValueError(
                f"actions[{lane}] must lie in {self.space}, got {actions[lane]}. No environment was stepped."
            )
        checked: np.ndarray = actions.astype(self.dtype, copy=False)
        return checked

    def _inside(self, actions: np.ndarray) -> Any:
        if self._casting == "unsafe":
            return (actions == 0) | (actions == 1)
        if self._unsigned_high is not None and actions.dtype == self.dtype:
            return actions.view(self._unsigned_high.dtype) <= self._unsigned_high
        return (actions >= self._low) & (actions <= self._high)  # NaN is neither

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse actions of another shape.

        Raises:
          ValueError: this is not the shape of a batch of actions.
        """
        if tuple(shape) != self._shape:
            raise ValueError(f"actions must have shape {self._shape}, got {tuple(shape)}, for {self.space}.")


def as_sb3_gives(action: Any, space: spaces.Space[Any]) -> np.ndarray:
    """A batch of actions for environments, in memory of their own, because environments may write into them.

    Bounds in float64 are kept as such: rounded to float32, they may be outside.
    """
    if isinstance(space, spaces.Box):
        clipped: np.ndarray = np.clip(np.asarray(action), space.low, space.high)
        return clipped
    # MaskablePPO chooses between two values of each bit, in wider integers.
    is_bits = isinstance(space, spaces.MultiBinary) and np.asarray(action).dtype not in (np.int32, np.int64)
    return np.array(action, np.float32 if is_bits else np.int64)
