"""ClipAction: accepts any number as an action."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import Environment, TimeStep, environment
from jaxenvs.wrappers.bases import StatelessWrapper, look_up_bounds


@environment
class ClipAction(StatelessWrapper):
    """Wrapper that clips actions to the Box of `env`, as `gymnasium.wrappers.ClipAction` does.

    Its own action space has no bounds. Use it for agents that do not clip their actions. SB3 clips by itself, and takes
    no action space without bounds. The bounds are the ones of `env` when the wrapper is created; as in Gymnasium, they
    do not follow its parameters. The state is the state of `env`.

    Attributes:
      action_low, action_high: the bounds, looked up in the action space of `env` if not given.
    """

    env: Environment[Any]
    action_low: Any = dataclasses.field(default=(), kw_only=True)
    action_high: Any = dataclasses.field(default=(), kw_only=True)

    def __check_init__(self) -> None:
        look_up_bounds(self)
        super().__check_init__()

    @property
    def action_space(self) -> gymnasium.Space[object]:
        space = self.env.action_space
        return gymnasium.spaces.Box(-np.inf, np.inf, space.shape, np.dtype(space.dtype).type)

    def step(self, state: object, action: Any) -> tuple[Any, TimeStep]:
        return self.env.step(state, jnp.clip(action, self.action_low, self.action_high))
