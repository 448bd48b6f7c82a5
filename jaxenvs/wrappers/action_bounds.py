"""Bounds of a Box of actions, for wrappers that need them in traced code, where spaces cannot be computed."""

from __future__ import annotations

from typing import Any

import jax
from gymnasium.spaces import Box

from jaxenvs.environment import require_environment


def look_up_bounds(wrapper: Any) -> bool:
    """Set a wrapper's `action_low` and `action_high`, where not given, to the bounds of its environment's actions.

    They are arrays in the shape of an action, in its dtype as JAX has it.

    Returns:
      Whether they were looked up.

    Raises:
      TypeError: the action space is not a Box; or it cannot be computed, as in traced code.
    """
    if not isinstance(wrapper.action_low, tuple) and not isinstance(wrapper.action_high, tuple):
        return False
    require_environment("env", wrapper.env)
    name, inside = type(wrapper).__name__, type(wrapper.env.unwrapped).__name__
    try:
        space = wrapper.env.action_space
    except jax.errors.JAXTypeError:
        raise TypeError(
            f"{name} must be made outside of traced code, or with action_low and action_high, because the action "
            f"space of {inside} depends on traced values."
        ) from None
    if not isinstance(space, Box):
        raise TypeError(f"{name} must wrap an environment whose action space is a Box, got {space} of {inside}.")
    dtype = jax.dtypes.canonicalize_dtype(space.dtype)
    for bound, value in (("action_low", space.low), ("action_high", space.high)):
        if isinstance(getattr(wrapper, bound), tuple):
            object.__setattr__(wrapper, bound, value.astype(dtype))
    return True
