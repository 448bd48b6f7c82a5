"""Pixel art: sprites written as text, painted into scenes; a state selects the parts of a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.drawing import scaled

Colour = tuple[int, int, int]

INK: Colour = (56, 58, 72)
WHITE: Colour = (252, 252, 250)
RED: Colour = (208, 99, 90)

_COLOURS: dict[str, Colour] = {
    "#": INK,
    "w": WHITE,
    "r": RED,
    "g": (212, 212, 212),
    "y": (232, 192, 88),
    "b": (196, 222, 242),
    "o": (201, 164, 88),
    "n": (128, 90, 62),
}

_FONT = {  # three columns by five rows
    "0": "### #.# #.# #.# ###",
    "1": ".#. ##. .#. .#. ###",
    "2": "### ..# ### #.. ###",
    "3": "### ..# ### ..# ###",
    "4": "#.# #.# ### ..# ..#",
    "5": "### #.. ### ..# ###",
    "6": "### #.. ### #.# ###",
    "7": "### ..# ..# .#. .#.",
    "8": "### #.# ### #.# ###",
    "9": "### #.# ### ..# ###",
    "A": ".#. #.# ### #.# #.#",
    "B": "##. #.# ##. #.# ##.",
    "C": "### #.. #.. #.. ###",
    "D": "##. #.# #.# #.# ##.",
    "E": "### #.. ##. #.. ###",
    "G": "### #.. #.# #.# ###",
    "L": "#.. #.. #.. #.. ###",
    "P": "### #.# ### #.. #..",
    "R": "##. #.# ##. #.# #.#",
    "S": "### #.. ### ..# ###",
    "U": "#.# #.# #.# #.# ###",
    "Y": "#.# #.# .#. .#. .#.",
    " ": "... ... ... ... ...",
}


class Sprite(NamedTuple):
    """Colors, uint8 (height, width, 3), with a mask of opaque pixels, bool (height, width)."""

    colours: np.ndarray
    mask: np.ndarray


def sprite(rows: Sequence[str]) -> Sprite:
    """Return a sprite from rows of letters: see `_COLOURS`; a dot is transparent."""
    letters = np.array([list(row) for row in rows])
    colours = np.zeros((*letters.shape, 3), np.uint8)
    for letter, colour in _COLOURS.items():
        colours[letters == letter] = colour
    return Sprite(colours, letters != ".")


def text(line: str, colour: Colour, scale: int = 1) -> Sprite:
    """Return a sprite of letters and digits, 3 by 5 pixels each, times a scale."""
    columns = [np.array([list(row) for row in _FONT[letter].split()]) == "#" for letter in line]
    gap = np.zeros((5, 1), bool)
    mask = np.hstack([part for column in columns for part in (column, gap)][:-1])
    mask = mask.repeat(scale, axis=0).repeat(scale, axis=1)
    return Sprite(np.broadcast_to(np.array(colour, np.uint8), (*mask.shape, 3)), mask)


def plain(height: int, width: int, colour: Colour) -> np.ndarray:
    """Return a picture of one color."""
    return np.full((height, width, 3), colour, np.uint8)


def box(height: int, width: int, colour: Colour) -> Sprite:
    """Return a filled rectangle."""
    return Sprite(plain(height, width, colour), np.ones((height, width), bool))


def painted(picture: np.ndarray, what: Sprite, top: int, left: int) -> np.ndarray:
    """Return a copy of a picture, uint8 (height, width, 3), with a sprite in it."""
    picture, (height, width) = picture.copy(), what.mask.shape
    picture[top : top + height, left : left + width][what.mask] = what.colours[what.mask]
    return picture


def tile(size: int, colour: Colour, edge: Colour) -> np.ndarray:
    """Return a square with an edge at the left and above."""
    return painted(plain(size, size, edge), box(size - 1, size - 1, colour), 1, 1)


def mosaic(rows: Sequence[str], tiles: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the picture of a map, a tile for each letter."""
    return np.vstack([np.hstack([tiles[letter] for letter in row]) for row in rows])


def draw_in_cell(
    inside: np.ndarray, outside: np.ndarray, grid: tuple[int, int], position: jax.Array, height: int, width: int
) -> jax.Array:
    """Draw one picture in the cell `position` = row * columns + column of a grid, another in all other cells.

    It uses masks, which XLA computes faster on a CPU than a gather of tiles.

    Args:
      inside, outside: uint8 (..., ..., 3), of the same shape.
      grid: rows and columns.

    Returns:
      uint8, shape (height, width, 3).
    """
    row = np.arange(height) * grid[0] // height
    column = (np.arange(width) * grid[1] // width).repeat(3).reshape(width, 3)  # in the order of memory
    is_inside = (row == position // grid[1])[:, None, None] & (column == position % grid[1])
    return jnp.where(is_inside, scaled(inside, height, width), scaled(outside, height, width))


WALKER = sprite(
    [
        ".######.",
        "#gggggg#",
        "#g#gg#g#",
        "#gggggg#",
        ".######.",
        "..#gg#..",
        ".#gggg#.",
        ".######.",
        "..#..#..",
        ".##..##.",
    ]
)

FLAG = sprite(["#rrr..", "#rrrrr", "#rrr..", "#.....", "#.....", "#.....", "#.....", "#....."])
