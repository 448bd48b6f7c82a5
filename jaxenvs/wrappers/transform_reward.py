"""TransformReward: applies a function to rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.arguments import function
from jaxenvs.environment import Environment, TimeStep, environment, static
from jaxenvs.wrappers.bases import StatelessWrapper


@environment
class TransformReward(StatelessWrapper):
    """Wrapper that returns `func(reward)` as the reward of a step, as `gymnasium.wrappers.TransformReward` does.

    The function is traced and is part of the compiled function: environments with the same function object share it,
    but two lambdas that do the same do not. The state is the state of `env`.

    Attributes:
      func: from the reward, float (), to another.
    """

    env: Environment[Any]
    func: Callable[[jax.Array], jax.typing.ArrayLike] = static()

    def __check_init__(self) -> None:
        function("func", self.func)
        super().__check_init__()

    def step(self, state: object, action: object) -> tuple[Any, TimeStep]:
        state, timestep = self.env.step(state, action)
        return state, timestep.replace(reward=jnp.asarray(self.func(timestep.reward), float))
