"""Random numbers for dynamics that take one number per step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxenvs.environment import struct


@struct
class UniformStream:
    """Stream of an episode's uniform numbers, for a state to carry: number k is made of `fold_in(key, k)`.

    That takes one block of threefry per step, where `split` and `uniform` take three.

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
        """Return the next stream, and a number: float () in [0, 1), a multiple of 2^-24."""
        bits = _folded_in(self.key, self.count)
        uniform = (bits >> 8).astype(jnp.int32) * jnp.asarray(2**-24, float)  # signed, which CPUs convert faster
        return UniformStream(key=self.key, count=self.count + 1), uniform


def _folded_in(key: jax.Array, count: jax.Array) -> jax.Array:
    """Return the first word of the key `fold_in(key, count)`: uint32 ().

    On a CPU, JAX's threefry is a loop over its rounds, which takes most of the time of a small environment's step;
    unrolled, it is one kernel.
    """
    if str(jax.random.key_impl(key)) != "threefry2x32":
        return jax.random.key_data(jax.random.fold_in(key, count))[0]
    first, second = jax.random.key_data(key)
    return _threefry(first, second, jnp.zeros((), jnp.uint32), count)


def _threefry(key_0: jax.Array, key_1: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the first word of Threefry-2x32 with 20 rounds.

    Source: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3".
    """
    keys = (key_0, key_1, key_0 ^ key_1 ^ jnp.uint32(0x1BD11BDA))
    x, y = x + key_0, y + key_1
    for group in range(1, 6):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[1 - group % 2]:
            x = x + y
            y = ((y << rotation) | (y >> (32 - rotation))) ^ x
        x, y = x + keys[group % 3], y + keys[(group + 1) % 3] + jnp.uint32(group)
    return x
