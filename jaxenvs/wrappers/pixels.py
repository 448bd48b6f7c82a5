"""Pixels: observes the picture of the state."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import image_size
from jaxenvs.environment import Environment, environment, require_environment, static
from jaxenvs.wrappers.bases import ObservationWrapper

LUMINANCE = np.array([2125, 7154, 721], np.int32)  # of red, green and blue, in 1/10000; Gymnasium's


@environment
class Pixels(ObservationWrapper):
    """Wrapper that observes the picture that `env` draws of its state, instead of the observation of `env`.

    Use it to train convolutional networks. Observation: uint8 (height, width, 3); with `grayscale` (height, width, 1).
    This is like Gymnasium's `AddRenderObservation` and `GrayscaleObservation(keep_dim=True)`, but drawn in the given
    size and inside compiled functions. A single picture does not show velocities: add a FrameStack. The state is the
    state of `env`.

    Attributes:
      size: height and width in pixels, or one number for both.
      grayscale: whether there is one channel, the luminance, instead of red, green and blue.
    """

    env: Environment[Any]
    size: Any = static(default=84)
    grayscale: bool = static(default=False)

    def __check_init__(self) -> None:
        require_environment("env", self.env)
        if type(self.env.unwrapped).draw is Environment.draw:
            name = type(self.env.unwrapped).__name__
            raise ValueError(f"env must be drawn in compiled functions: define {name}.draw(state, height, width).")
        object.__setattr__(self, "size", image_size("size", self.size))
        super().__check_init__()

    @property
    def observation_space(self) -> gymnasium.spaces.Box:
        return gymnasium.spaces.Box(0, 255, (*self.size, 1 if self.grayscale else 3), np.uint8)

    def observe(self, state: object, observation: object) -> jax.Array:
        picture = self.env.draw(state, *self.size)
        if not self.grayscale:
            return picture
        luminance = (picture.astype(jnp.int32) * LUMINANCE).sum(-1, keepdims=True) // 10_000
        return luminance.astype(jnp.uint8)
