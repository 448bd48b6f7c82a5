"""Small things that all of it needs: rotations, frames of bodies, rows of tables, the first of the least."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d.kernels import once

Number: TypeAlias = Any  # a float32 of JAX or NumPy
Vector: TypeAlias = tuple[Number, Number]


class Frame(NamedTuple):
    """Where a body's origin is, and sine and cosine of how it is turned (`b2Transform`)."""

    x: Number
    y: Number
    sine: Number
    cosine: Number

    def turn(self, x: Number, y: Number) -> Vector:
        """A direction of the body, in the world."""
        return self.cosine * x - self.sine * y, self.sine * x + self.cosine * y

    def turn_back(self, x: Number, y: Number) -> Vector:
        """A direction of the world, in the body."""
        return self.cosine * x + self.sine * y, self.cosine * y - self.sine * x

    def place(self, x: Number, y: Number) -> Vector:
        """A point of the body, in the world."""
        x, y = self.turn(x, y)
        return x + self.x, y + self.y


@once
def sine_and_cosine(angle: Number) -> Vector:
    """Both of an angle, once: XLA would compute them anew in each of the dozen operations that turn by them."""
    return jnp.sin(angle), jnp.cos(angle)


def frame(center_x: Number, center_y: Number, angle: Number, center: Any) -> Frame:
    """The frame of a body whose centre of mass is there; `center`, (2,) or (2, ...), is that centre in the frame."""
    sine, cosine = sine_and_cosine(angle)
    x, y = Frame(center_x, center_y, sine, cosine).turn(center[0], center[1])
    return Frame(center_x - x, center_y - y, sine, cosine)


def clamp(value: Number, low: Number, high: Number) -> Any:
    """As b2Clamp: `low` if the bounds are the wrong way round."""
    return jnp.maximum(low, jnp.minimum(value, high))


def first_least(values: jax.Array) -> jax.Array:
    """The number of the least of some values, int32; of several the first, as a loop with `<` finds it.

    Two reductions, as the one of `argmin` over pairs would not be put into a kernel.
    """
    numbers = np.arange(values.shape[0], dtype=np.int32)
    return jnp.min(jnp.where(values == jnp.min(values), numbers, np.int32(values.shape[0] - 1)))


def row(table: Any, number: Any) -> Any:
    """One row of a table, a pytree of arrays."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(jnp.asarray(leaf), number, 0, keepdims=False), table)


def with_row(table: Any, number: Any, values: Any) -> Any:
    """A table with one row replaced."""
    return jax.tree.map(
        lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, jnp.asarray(new, leaf.dtype), number, 0),
        table,
        values,
    )


def rows(table: Any) -> Any:
    """The rows of a table as tuples of numbers; of one axis, the numbers."""
    table = jnp.asarray(table)
    if table.ndim == 1:
        return tuple(table[i] for i in range(table.shape[0]))
    return tuple(tuple(table[i, j] for j in range(table.shape[1])) for i in range(table.shape[0]))


def table(rows: Any) -> jax.Array:
    """The table of which these are the rows."""
    return jnp.stack([jnp.stack(row) for row in rows])
