"""StickyAction: sometimes repeats the last action instead of the agent's new one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.arguments import number, positive_int, shown
from jaxenvs.checks import action_struct
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, static, struct


@struct
class StickyActionState:
    """State of a StickyAction.

    Attributes:
      inner: the state of the wrapped environment.
      key: of all draws of the episode.
      last_action: the last action that the environment took; zeros before the first step.
      elapsed_steps: uint32, the steps taken in this episode.
      repeats_left: int32, how many more steps repeat the last action.
    """

    inner: Any
    key: jax.Array
    last_action: Any
    elapsed_steps: jax.Array
    repeats_left: jax.Array


@environment
class StickyAction(Wrapper[StickyActionState]):
    """Wrapper that repeats the last action with some probability, as `gymnasium.wrappers.StickyAction`.

    Use it to make deterministic environments stochastic. Each step draws independently, except for steps that a
    repetition still covers; the first step of an episode never repeats.
    Source: Machado et al. (2018), "Revisiting the Arcade Learning Environment", section 5.2.

    Attributes:
      repeat_action_probability: at least 0 and below 1.
      repeat_action_duration: for how many steps to repeat; or (least, most), between which the number is drawn.
    """

    env: Environment[Any]
    repeat_action_probability: float
    repeat_action_duration: int | tuple[int, int] = static(default=1)

    def __check_init__(self) -> None:
        super().__check_init__()
        if not isinstance(self.repeat_action_probability, jax.Array) and jnp.ndim(self.repeat_action_probability) == 0:
            probability = number("repeat_action_probability", self.repeat_action_probability, least=0, most=1)
            if probability == 1:
                raise ValueError("repeat_action_probability must be below 1, got 1: no action would ever be taken.")
            object.__setattr__(self, "repeat_action_probability", float(probability))
        least, most = self._durations
        positive_int("repeat_action_duration", least)
        if positive_int("repeat_action_duration", most) < least:
            raise ValueError(
                "repeat_action_duration must be (least, most) with least <= most, got "
                f"{shown(self.repeat_action_duration)}."
            )

    @property
    def _durations(self) -> tuple[Any, Any]:
        duration: Any = self.repeat_action_duration
        if not isinstance(duration, tuple):
            return duration, duration
        if len(duration) != 2:
            raise ValueError(f"repeat_action_duration must be an int or (least, most), got {shown(duration)}.")
        return duration

    def reset(self, key: jax.Array) -> tuple[StickyActionState, TimeStep]:
        own_key, env_key = jax.random.split(key)
        inner, timestep = self.env.reset(env_key)
        action = action_struct(self.env)
        if action is None:
            self.env.action_space  # noqa: B018  # raises, and says why there is none
        state = StickyActionState(
            inner=inner,
            key=own_key,
            last_action=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), action),
            elapsed_steps=jnp.zeros((), jnp.uint32),
            repeats_left=jnp.zeros((), jnp.int32),
        )
        return state, timestep

    def step(self, state: StickyActionState, action: object) -> tuple[StickyActionState, TimeStep]:
        uniform, duration = self._draw(state)
        action, repeats_left = self._choose(state, action, uniform, duration)
        inner, timestep = self.env.step(state.inner, action)
        state = StickyActionState(
            inner=inner,
            key=state.key,
            last_action=action,
            elapsed_steps=state.elapsed_steps + 1,
            repeats_left=repeats_left,
        )
        return state, timestep

    def _draw(self, state: StickyActionState) -> tuple[jax.Array, Any]:
        """Draw a number from [0, 1), and a duration."""
        # Splitting a key in each step would need one more hash, and a hash costs more than a whole step of CartPole.
        key = jax.random.fold_in(state.key, state.elapsed_steps)
        least, most = self._durations
        if least == most:
            return jax.random.uniform(key), least
        uniform, place = jax.random.uniform(key, (2,))
        return uniform, least + (place * (most - least + 1)).astype(jnp.int32)

    def _choose(
        self, state: StickyActionState, action: object, uniform: jax.Array, duration: Any
    ) -> tuple[Any, jax.Array]:
        """Return the action that is taken, and for how many more steps it is repeated."""
        starts = (state.elapsed_steps > 0) & (state.repeats_left == 0) & (uniform < self.repeat_action_probability)
        repeats_left = jnp.where(starts, jnp.asarray(duration, jnp.int32), state.repeats_left)
        repeats = repeats_left > 0
        action = jax.tree.map(
            lambda last, new: jnp.where(repeats, last, jnp.asarray(new, last.dtype)), state.last_action, action
        )
        return action, repeats_left - repeats
