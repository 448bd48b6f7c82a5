"""RescaleAction: takes actions between other bounds."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import is_real, shown
from jaxenvs.environment import Environment, TimeStep, environment
from jaxenvs.jax_names import is_traced
from jaxenvs.wrappers.bases import StatelessWrapper, look_up_bounds


@environment
class RescaleAction(StatelessWrapper):
    """Wrapper that takes actions from `min_action` to `max_action`, and maps them linearly to the Box of `env`.

    Use it to give all actions one range, such as [-1, 1]. As in `gymnasium.wrappers.RescaleAction`, where an element of
    the Box is unbounded, the new bound must be unbounded too, and the element is only shifted. The bounds of `env` are
    its bounds when the wrapper is created; as in Gymnasium, they do not follow its parameters. The state is the state
    of `env`.

    Attributes:
      min_action, max_action: a number, or an array with the shape of an action.
      action_low, action_high: the bounds of `env`, looked up in its action space if not given.
    """

    env: Environment[Any]
    min_action: jax.typing.ArrayLike
    max_action: jax.typing.ArrayLike
    action_low: Any = dataclasses.field(default=(), kw_only=True)
    action_high: Any = dataclasses.field(default=(), kw_only=True)

    def __check_init__(self) -> None:
        is_new = look_up_bounds(self)
        super().__check_init__()
        for name in ("min_action", "max_action"):
            value = getattr(self, name)
            if not is_real(value):
                raise TypeError(f"{name} must be a number or an array of numbers, got {shown(value)}.")
            if not isinstance(value, jax.Array | np.ndarray):
                object.__setattr__(self, name, float(value))  # so that -1 and -1.0 share a compiled function
        bounds = (self.min_action, self.max_action, self.action_low, self.action_high)
        if is_new and not any(map(is_traced, bounds)):
            _require_scale(*map(np.asarray, bounds))

    @property
    def action_space(self) -> gymnasium.Space[object]:
        space = self.env.action_space
        bounds = (np.asarray(bound, space.dtype) for bound in (self.min_action, self.max_action))
        low, high = (np.broadcast_to(bound, space.shape or ()) for bound in bounds)
        return gymnasium.spaces.Box(low, high, dtype=np.dtype(space.dtype).type)

    def step(self, state: object, action: Any) -> tuple[Any, TimeStep]:
        low, high = jnp.asarray(self.action_low), jnp.asarray(self.action_high)
        least, greatest = (jnp.asarray(bound, low.dtype) for bound in (self.min_action, self.max_action))
        has_low, has_high = jnp.isfinite(low), jnp.isfinite(high)
        both = has_low & has_high
        gradient = jnp.where(both, jnp.where(both, greatest - least, 1) / jnp.where(both, high - low, 1), 1)
        intercept = jnp.where(has_low, least - gradient * low, jnp.where(has_high, greatest - high, 0))
        return self.env.step(state, (action - intercept) / gradient)


def _require_scale(least: np.ndarray, greatest: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Raise if no linear map takes one pair of bounds to the other."""
    for name, new, old in (("min_action", least, low), ("max_action", greatest, high)):
        if new.shape not in ((), old.shape):
            raise ValueError(f"{name} must be a number or have shape {old.shape}, got {shown(new)}.")
        if ((np.isinf(new) | np.isinf(old)) & (new != old)).any():
            raise ValueError(f"{name} must be infinite exactly where the bound of env, {old}, is infinite, got {new}.")
    if not np.all(least < greatest):
        raise ValueError(f"min_action must be less than max_action, got {least} and {greatest}.")
