"""Pictures made of tiles: a grid of numbers, and a small picture for each number; and the scaling of pictures."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

Picture = TypeVar("Picture", jax.Array, np.ndarray)


def scaled(picture: Picture, height: int, width: int) -> Picture:
    """Scale a picture, or several (..., height, width, 3), to the nearest pixel."""
    rows, columns = np.arange(height) * picture.shape[-3] // height, np.arange(width) * picture.shape[-2] // width
    return picture[..., rows[:, None], columns, :]


def draw_tiles(grid: jax.Array, tiles: jax.Array | np.ndarray, height: int, width: int) -> jax.Array:
    """Draw a grid, each cell as the tile of its number, scaled to the nearest pixel.

    Args:
      grid: integers, shape (rows, columns), the tile of each cell.
      tiles: uint8, shape (number, tile height, tile width, 3); or (number, 3), one color for each.

    Returns:
      uint8, shape (height, width, 3).
    """
    tiles = jnp.asarray(tiles, jnp.uint8)
    if tiles.ndim == 2:
        tiles = tiles[:, None, None, :]
    row, y = _positions(height, grid.shape[0], tiles.shape[1])
    column, x = _positions(width, grid.shape[1], tiles.shape[2])
    return tiles[grid[row[:, None], column], y[:, None], x]


def _positions(size: int, cells: int, tile_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for the pixels along one side, the cell that each lies in, and the position in that cell's tile."""
    where = np.arange(size) * cells * tile_size // size
    return where // tile_size, where % tile_size
