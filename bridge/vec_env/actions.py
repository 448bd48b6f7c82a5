"""Checks of Stable-Baselines3's actions on the host, and their conversion for environments of other libraries."""

from __future__ import annotations

from typing import Any, Literal

import jax
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from bridge.sb3 import Space
from jaxenvs.spaces import leaf_bounds

# Unscaling from [-1, 1] in float32 rounds, so a Box action may exceed its bounds by this relative error.
TOLERANCE = 1e-5


class ActionChecker:
    """Callable that checks batches of actions against a space, and casts them to the environments' dtype.

    It runs in every step, so a single comparison detects any invalid action, and only then is the invalid one searched
    for.
    """

    def __init__(self, space: Space, num_envs: int, dtype: npt.DTypeLike | None = None) -> None:
        """Prepare the bounds that actions of `num_envs` environments are compared with.

        The environments expect `dtype`; by default the space's dtype as JAX represents it.
        """
        if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise TypeError(f"action_space must be a Box, Discrete, MultiDiscrete or MultiBinary for SB3, got {space}.")
        self.space = space
        self._low, self._high = leaf_bounds(space)
        self.dtype = np.dtype(jax.dtypes.canonicalize_dtype(space.dtype) if dtype is None else dtype)
        # SB3 samples binary actions as floats.
        self._casting: Literal["same_kind", "unsafe"] = (
            "unsafe" if isinstance(space, spaces.MultiBinary) else "same_kind"
        )
        if self.dtype.kind == "f":
            slack = TOLERANCE * np.maximum(1.0, np.maximum(np.abs(self._low), np.abs(self._high)))
            self._low, self._high = self._low - slack, self._high + slack
        # With a lower bound of 0, one comparison suffices: a negative int reinterpreted as unsigned is huge.
        is_counted = self.dtype.kind in "iu" and not self._low.any()
        self._unsigned_high = self._high.astype(f"u{self.dtype.itemsize}") if is_counted else None
        self._accepted: set[np.dtype] = set()
        self._shape = (num_envs, *(space.shape or ()))

    def __call__(self, actions: object) -> np.ndarray:
        """Return the actions of all environments, cast to the environments' dtype, after checking them."""
        try:
            actions = np.asarray(actions)
        except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors that require a gradient, ...
            raise ValueError(f"actions must have shape {self._shape}, got {actions!r}.") from None
        self.check_shape(actions.shape)
        if actions.dtype not in self._accepted:  # calling np.can_cast in every step is slow
            are_integers = self.dtype.kind in "iu" and actions.dtype.kind in "iu"  # compared with the bounds below
            if not (are_integers or np.can_cast(actions.dtype, self.dtype, self._casting)):
                raise TypeError(f"actions must be {self.space.dtype} or cast safely to it, got {actions.dtype}.")
            self._accepted.add(actions.dtype)
        inside = self._inside(actions)
        if np.count_nonzero(inside) < inside.size:  # takes half the time of `all`
            index = int(np.argwhere(~inside)[0][0])
            raise ValueError(
                f"actions[{index}] must lie in {self.space}, got {actions[index]}. No environment was stepped."
            )
        return actions.astype(self.dtype, copy=False)

    def _inside(self, actions: np.ndarray) -> Any:
        if self._casting == "unsafe":
            return (actions == 0) | (actions == 1)
        if self._unsigned_high is not None and actions.dtype == self.dtype:
            return actions.view(self._unsigned_high.dtype) <= self._unsigned_high
        return (actions >= self._low) & (actions <= self._high)  # NaN fails both comparisons

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise unless a batch of actions has the expected shape, (num_envs, *shape of an action)."""
        if tuple(shape) != self._shape:
            raise ValueError(f"actions must have shape {self._shape}, got {tuple(shape)}, for {self.space}.")


def as_sb3_gives(action: npt.ArrayLike, space: Space) -> np.ndarray:
    """Return a batch of actions as SB3 passes them to environments, in a new array, which these may overwrite.

    Box actions are clipped to the space's bounds, which stay in float64: rounded to float32, a bound may lie outside.
    """
    if isinstance(space, spaces.Box):
        clipped: np.ndarray = np.clip(np.asarray(action), space.low, space.high)
        return clipped
    # MaskablePPO chooses between two values of each bit, and its actions are wider integers.
    is_bits = isinstance(space, spaces.MultiBinary) and np.asarray(action).dtype not in (np.int32, np.int64)
    return np.array(action, np.float32 if is_bits else np.int64)
