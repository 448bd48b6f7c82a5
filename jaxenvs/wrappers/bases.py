"""Base classes of wrappers that add no state, and the bounds of actions for those that need them in traced code."""

from __future__ import annotations

from typing import Any

import jax
from gymnasium.spaces import Box

from jaxenvs.environment import TimeStep, Wrapper, require_environment


class StatelessWrapper(Wrapper[Any]):
    """Base class of wrappers that have the state of `env`, and start episodes as `env` does."""

    def inner_state(self, state: object) -> Any:
        return state

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        return self.env.reset(key)


class ObservationWrapper(StatelessWrapper):
    """Base class of wrappers that only change observations. Their state is the state of `env`."""

    def observe(self, state: object, observation: object) -> Any:
        """Return the observation of a state, given the observation of `env`."""
        raise NotImplementedError

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        state, timestep = self.env.reset(key)
        return state, timestep.replace(observation=self.observe(state, timestep.observation))

    def step(self, state: object, action: object) -> tuple[Any, TimeStep]:
        state, timestep = self.env.step(state, action)
        return state, timestep.replace(observation=self.observe(state, timestep.observation))


def look_up_bounds(wrapper: Any) -> bool:
    """Set a wrapper's `action_low` and `action_high`, where not given, to the bounds of its environment's actions.

    They are arrays in the shape of an action, in its dtype as JAX has it.

    Returns:
      Whether they were looked up.
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
