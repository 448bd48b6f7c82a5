"""ActionRepeat: takes each action for several steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.arguments import positive_int
from jaxenvs.environment import Environment, TimeStep, environment, static
from jaxenvs.wrappers.bases import StatelessWrapper


@environment
class ActionRepeat(StatelessWrapper):
    """Wrapper that takes each action for `num_repeats` steps, as `gymnasium.wrappers.RepeatAction` does.

    Use it to let an agent decide less often. The reward is the sum over the steps, the rest comes from the last of
    them. Steps after the end of an episode are not taken. The state is the state of `env`.

    Attributes:
      num_repeats: at least 1.
    """

    env: Environment[Any]
    num_repeats: int = static()

    def __check_init__(self) -> None:
        super().__check_init__()
        object.__setattr__(self, "num_repeats", positive_int("num_repeats", self.num_repeats))

    def step(self, state: object, action: object) -> tuple[Any, TimeStep]:
        def again(carry: tuple[Any, TimeStep], _: None) -> tuple[tuple[Any, TimeStep], None]:
            _, before = carry
            state, timestep = self.env.step(carry[0], action)
            timestep = timestep.replace(reward=before.reward + timestep.reward)
            # A loop that stops at the end would run until all environments have stopped, and would not be
            # differentiable.
            return jax.tree.map(lambda old, new: jnp.where(before.done, old, new), carry, (state, timestep)), None

        return jax.lax.scan(again, self.env.step(state, action), length=self.num_repeats - 1)[0]
