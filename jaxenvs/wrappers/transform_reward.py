"""TransformReward: a function of the reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.arguments import function
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, static


@environment
class TransformReward(Wrapper[Any]):
    """Gives `func(reward)` for the reward of a step, as `gymnasium.wrappers.TransformReward` does.

    The function is traced and is part of the program: programs are shared by environments with the same one, not by
    those with two lambdas that do the same. The state is that of `env`.

    Attributes:
      func: from the reward, float (), to another.
    """

    env: Environment[Any]
    func: Callable[[jax.Array], Any] = static()

    def __check_init__(self) -> None:
        function("func", self.func)
        super().__check_init__()

    def inner_state(self, state: Any) -> Any:
        return state

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        return self.env.reset(key)

    def step(self, state: Any, action: Any) -> tuple[Any, TimeStep]:
        state, timestep = self.env.step(state, action)
        return state, timestep.replace(reward=jnp.asarray(self.func(timestep.reward), float))
