"""TimeLimit: truncates episodes after a number of steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import positive_int, shown
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, struct


@struct
class TimeLimitState:
    """State of a TimeLimit.

    Attributes:
      inner: the state of the wrapped environment.
      elapsed_steps: int32 (), the steps taken in this episode.
    """

    inner: Any
    elapsed_steps: jax.Array


@environment
class TimeLimit(Wrapper[TimeLimitState]):
    """Wrapper that sets `truncated` from step `max_steps` of an episode on, as `gymnasium.wrappers.TimeLimit` does.

    `jaxenvs.make` adds it to environments that are registered with a limit. A step that reaches the limit and ends the
    episode by itself is both truncated and terminated.

    Attributes:
      max_steps: of an episode, at least 1.
    """

    env: Environment[Any]
    max_steps: int

    def __check_init__(self) -> None:
        if isinstance(self.max_steps, jax.Array | np.ndarray):  # traced, or one for each environment
            if not jnp.issubdtype(self.max_steps.dtype, jnp.integer):
                raise ValueError(f"max_steps must have an integer dtype, got {shown(self.max_steps)}.")
            if isinstance(self.max_steps, np.ndarray) and self.max_steps.size and self.max_steps.min() < 1:
                raise ValueError(f"max_steps must be positive, got {self.max_steps.min()}.")
        else:
            positive_int("max_steps", self.max_steps)
        super().__check_init__()

    def reset(self, key: jax.Array) -> tuple[TimeLimitState, TimeStep]:
        inner, timestep = self.env.reset(key)
        return TimeLimitState(inner=inner, elapsed_steps=jnp.zeros((), jnp.int32)), timestep

    def step(self, state: TimeLimitState, action: object) -> tuple[TimeLimitState, TimeStep]:
        inner, timestep = self.env.step(state.inner, action)
        elapsed_steps = state.elapsed_steps + 1
        timestep = timestep.replace(truncated=timestep.truncated | (elapsed_steps >= self.max_steps))
        return TimeLimitState(inner=inner, elapsed_steps=elapsed_steps), timestep
