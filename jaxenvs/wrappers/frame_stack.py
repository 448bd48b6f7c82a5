"""FrameStack: observes the last several observations."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.utils import create_zero_array

from jaxenvs.arguments import one_of, positive_int
from jaxenvs.checks import possible_observation_spaces
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, static, struct


@struct
class FrameStackState:
    """State of a FrameStack.

    Attributes:
      inner: the state of the wrapped environment.
      frames: the last observation of the wrapper: the next one differs by one frame.
    """

    inner: Any
    frames: Any


@environment
class FrameStack(Wrapper[FrameStackState]):
    """Wrapper that stacks the last `stack_size` observations, as `gymnasium.wrappers.FrameStackObservation` does.

    Use it where one observation does not show velocities, as in pictures. The oldest frame comes first. An episode
    starts with copies of its first observation, or with zeros: `padding_type` "reset" or "zero". Where zero is outside
    of the space, the padding is the bound nearest to it.

    Each array of the observation gets a new first axis, so that images (height, width) become one image with the frames
    as channels, which SB3's CnnPolicy takes. With `channels_order`, as in SB3's VecFrameStack, the frames are
    concatenated along an existing axis: "last" turns images with channels into (height, width, stack_size * channels),
    and "first" into (stack_size * channels, height, width).

    Attributes:
      stack_size: how many observations.
      padding_type: "reset" or "zero".
      channels_order: None for a new axis; "last" or "first".
      padding: the observation of zeros, looked up when the wrapper is created: it does not follow parameters of `env`.
    """

    env: Environment[Any]
    stack_size: int = static()
    padding_type: str = static(default="reset")
    channels_order: str | None = static(default=None)
    padding: Any = dataclasses.field(default=(), kw_only=True, repr=False)

    def __check_init__(self) -> None:
        super().__check_init__()
        object.__setattr__(self, "stack_size", positive_int("stack_size", self.stack_size))
        one_of("padding_type", self.padding_type, ("reset", "zero"))
        one_of("channels_order", self.channels_order, (None, "first", "last"))
        if self.padding_type == "zero" and isinstance(self.padding, tuple) and not self.padding:
            object.__setattr__(self, "padding", _zeros(self.env))

    @property
    def observation_space(self) -> gymnasium.Space[object]:
        space = self.env.observation_space
        return batch_space(space, self.stack_size) if self.channels_order is None else self._along_an_axis(space)

    def _along_an_axis(self, space: gymnasium.Space[object]) -> gymnasium.Space[object]:
        if isinstance(space, gymnasium.spaces.Dict):
            return gymnasium.spaces.Dict({name: self._along_an_axis(part) for name, part in space.spaces.items()})
        if isinstance(space, gymnasium.spaces.Tuple):
            return gymnasium.spaces.Tuple([self._along_an_axis(part) for part in space.spaces])
        if not isinstance(space, gymnasium.spaces.Box) or not space.shape:
            raise ValueError(
                f"channels_order must be None for {space}, got {self.channels_order!r}: only a Box has channels."
            )
        low, high = (np.concatenate([bound] * self.stack_size, axis=self._axis) for bound in (space.low, space.high))
        return gymnasium.spaces.Box(low, high, dtype=space.dtype.type)

    @property
    def _axis(self) -> int:
        return -1 if self.channels_order == "last" else 0

    def reset(self, key: jax.Array) -> tuple[FrameStackState, TimeStep]:
        inner, timestep = self.env.reset(key)
        return self._observe(inner, timestep, self._start(timestep.observation))

    def step(self, state: FrameStackState, action: object) -> tuple[FrameStackState, TimeStep]:
        inner, timestep = self.env.step(state.inner, action)
        return self._observe(inner, timestep, jax.tree.map(self._push, state.frames, timestep.observation))

    def _observe(self, inner: Any, timestep: TimeStep, frames: Any) -> tuple[FrameStackState, TimeStep]:
        return FrameStackState(inner=inner, frames=frames), timestep.replace(observation=frames)

    def _start(self, observation: object) -> Any:
        padding = self.padding if self.padding_type == "zero" else observation
        return jax.tree.map(self._padded, observation, padding)

    def _padded(self, leaf: jax.Array, padding: jax.Array) -> jax.Array:
        before = self._frame(jnp.asarray(padding, leaf.dtype))
        return jnp.concatenate([before] * (self.stack_size - 1) + [self._frame(leaf)], axis=self._axis)

    def _push(self, frames: jax.Array, leaf: jax.Array) -> jax.Array:
        frame = self._frame(leaf)
        kept = jax.lax.slice_in_dim(frames, frame.shape[self._axis], None, axis=self._axis)
        return jnp.concatenate([kept, frame], axis=self._axis)

    def _frame(self, leaf: jax.Array) -> jax.Array:
        return leaf if self.channels_order else leaf[None]


def _zeros(env: Environment[Any]) -> Any:
    """Return the observation of an environment that is nearest to zero."""
    found = [create_zero_array(space) for space in possible_observation_spaces(env)]
    leaves = [jax.tree.leaves(zeros) for zeros in found]
    if not found:
        env.observation_space  # noqa: B018  # raises, and says why there is none
    if not found or not all(np.array_equal(*pair) for other in leaves[1:] for pair in zip(leaves[0], other)):
        raise ValueError(
            "FrameStack with padding_type 'zero' must be made outside of traced code, because the observation bounds "
            f"of {type(env.unwrapped).__name__} depend on traced values."
        )
    return jax.tree.map(lambda leaf: np.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)), found[0])
