"""Random numbers for dynamics that take one a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxenvs.environment import struct


@struct
class UniformStream:
    """The uniform numbers of one episode, for a state to carry: number k is a hash of the key and k.

    That is one block of threefry a step, where `split` and `uniform` take three; the step of a small table costs less
    than a block.

    Attributes:
      key: a typed key, shape (), used for nothing else.
      count: uint32, shape (), the numbers drawn so far.
    """

    key: jax.Array
    count: jax.Array

    @classmethod
    def create(cls, key: jax.Array) -> UniformStream:
        return cls(key=key, count=jnp.zeros((), jnp.uint32))

    def next(self) -> tuple[UniformStream, jax.Array]:
        """The stream after one number, and the number: float () in [0, 1), a multiple of 2^-24."""
        bits = jax.random.key_data(jax.random.fold_in(self.key, self.count))[0]
        uniform = (bits >> 8).astype(jnp.int32) * jnp.asarray(2**-24, float)  # signed, which CPUs convert faster
        return UniformStream(key=self.key, count=self.count + 1), uniform
