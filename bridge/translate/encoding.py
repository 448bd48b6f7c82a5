"""How observations of a space become numbers for networks: Stable-Baselines3's `preprocess_obs`."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

from bridge.errors import NotCompilable


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How observations of one space are encoded.

    Attributes:
      shape: of an observation.
      nvec: of Discrete and MultiDiscrete, whose numbers become so many one-hot vectors, end to end.
      is_image: numbers are divided by 255.
    """

    shape: tuple[int, ...]
    nvec: tuple[int, ...] = ()
    is_image: bool = False

    def __call__(self, observation: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
        """(batch, *encoded_shape) numbers. Observations of a Discrete space may be (batch,) or (batch, 1)."""
        if self.nvec:
            numbers = observation.reshape(-1, len(self.nvec)).astype(jnp.int32)
            one_hot = [jax.nn.one_hot(numbers[:, i], n, dtype=dtype) for i, n in enumerate(self.nvec)]
            return jnp.concatenate(one_hot, axis=1)
        return observation.astype(dtype) / 255 if self.is_image else observation.astype(dtype)

    @property
    def encoded_shape(self) -> tuple[int, ...]:
        """The shape of one observation as the network takes it."""
        return (sum(self.nvec),) if self.nvec else self.shape


def export_encoding(space: gymnasium.Space[Any], normalize_images: bool) -> Encoding | tuple[tuple[str, Encoding], ...]:
    """How SB3 encodes observations; of a Dict space, for each key.

    Raises:
      NotCompilable: there is no translation for observations of this space.
    """
    if isinstance(space, spaces.Dict):
        return tuple((key, _encoding(part, normalize_images)) for key, part in space.items())
    return _encoding(space, normalize_images)


def _encoding(space: gymnasium.Space[Any], normalize_images: bool) -> Encoding:
    if isinstance(space, spaces.Box):
        return Encoding(space.shape, is_image=normalize_images and is_image_space(space))
    if isinstance(space, spaces.MultiBinary):
        return Encoding(space.shape)
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return Encoding((), nvec=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not np.any(space.start):
        return Encoding(space.shape, nvec=tuple(space.nvec.tolist()))
    raise NotCompilable(f"There is no translation to JAX of observations of {space}.")
