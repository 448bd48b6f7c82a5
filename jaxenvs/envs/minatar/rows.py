"""Grids of ten by ten cells as ten words, one a row: the cell of column c is bit c.

What would be a loop over things in sight becomes a few operations on ten integers, and moving everything a column is a
shift.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.envs.minatar.game import SIZE

ROW = np.arange(SIZE, dtype=np.int32)
ALL = (1 << SIZE) - 1  # a row with every cell set


def cell(row: jax.Array, column: jax.Array) -> jax.Array:
    """The grid with one cell set, int32 (10,); with none where the row or column lies outside by one."""
    return jnp.where(row == ROW, (jnp.int32(2) << column + 1) >> 2 & ALL, 0)


def to_left(words: jax.Array) -> jax.Array:
    """Everything moved one column to the left; what was in column 0 is gone."""
    return words >> 1


def to_right(words: jax.Array) -> jax.Array:
    """Everything moved one column to the right; what was in column 9 is gone."""
    return words << 1 & ALL


def cells(words: jax.Array) -> jax.Array:
    """The cells of some grids, bool (10, 10, grids), from int32 (10, grids)."""
    return (words[:, None] >> ROW[:, None]) & 1 != 0
