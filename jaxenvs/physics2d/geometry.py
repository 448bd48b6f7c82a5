"""Helpers of all modules: rotations, frames of bodies, rows of tables, the first minimum."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d.kernels import once

Number: TypeAlias = jax.Array  # a float32
Vector: TypeAlias = tuple[Number, Number]
Table = TypeVar("Table")


class Frame(NamedTuple):
    """Position of a body's origin, and sine and cosine of its angle (`b2Transform`)."""

    x: Number
    y: Number
    sine: Number
    cosine: Number

    def turn(self, x: Number | np.ndarray, y: Number | np.ndarray) -> Vector:
        """Convert a direction from the body's frame to world coordinates."""
        return self.cosine * x - self.sine * y, self.sine * x + self.cosine * y

    def turn_back(self, x: Number, y: Number) -> Vector:
        """Convert a direction from world coordinates to the body's frame."""
        return self.cosine * x + self.sine * y, self.cosine * y - self.sine * x

    def place(self, x: Number | np.ndarray, y: Number | np.ndarray) -> Vector:
        """Convert a point from the body's frame to world coordinates."""
        x, y = self.turn(x, y)
        return x + self.x, y + self.y


@once
def sine_and_cosine(angle: Number) -> Vector:
    """Return sine and cosine, computed once: XLA would recompute them in each of a dozen operations that use them."""
    return jnp.sin(angle), jnp.cos(angle)


def frame(center_x: Number, center_y: Number, angle: Number, center: jax.Array) -> Frame:
    """Return the frame of a body, given its center of mass; `center`, (2,) or (2, ...), is that center in the frame."""
    sine, cosine = sine_and_cosine(angle)
    x, y = Frame(center_x, center_y, sine, cosine).turn(center[0], center[1])
    return Frame(center_x - x, center_y - y, sine, cosine)


def clamp(value: Number, low: Number | np.float32 | int, high: Number | np.float32 | int) -> jax.Array:
    """Clamp like b2Clamp: return `low` if the bounds are the wrong way round."""
    return jnp.maximum(low, jnp.minimum(value, high))


def first_least(values: jax.Array) -> jax.Array:
    """Return the index of the minimum, int32; of several the first, as a loop with `<` finds it.

    It takes two reductions, because the reduction of `argmin` over pairs would not be fused into a kernel.
    """
    numbers = np.arange(values.shape[0], dtype=np.int32)
    return jnp.min(jnp.where(values == jnp.min(values), numbers, np.int32(values.shape[0] - 1)))


def row(table: Any, number: jax.typing.ArrayLike) -> Any:
    """Return one row of a table, a pytree of arrays."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(jnp.asarray(leaf), number, 0, keepdims=False), table)


def with_row(table: Table, number: jax.typing.ArrayLike, values: object) -> Table:
    """Return a table with one row replaced."""
    changed: Table = jax.tree.map(
        lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, jnp.asarray(new, leaf.dtype), number, 0),
        table,
        values,
    )
    return changed


def rows(table: jax.typing.ArrayLike) -> Any:
    """Return the rows of a table as tuples of numbers; for one axis, the numbers."""
    table = jnp.asarray(table)
    if table.ndim == 1:
        return tuple(table[i] for i in range(table.shape[0]))
    return tuple(tuple(table[i, j] for j in range(table.shape[1])) for i in range(table.shape[0]))


def table(rows: Iterable[Sequence[Number]]) -> jax.Array:
    """Return the table with these rows."""
    return jnp.stack([jnp.stack(row) for row in rows])
