"""Pictures inside jit, for `Environment.draw`: pure functions of numbers, which can be batched and compiled."""

from jaxenvs.drawing.canvas import BLACK, WHITE, Canvas, Number, background
from jaxenvs.drawing.tiles import draw_tiles, scaled

__all__ = ["BLACK", "WHITE", "Canvas", "Number", "background", "draw_tiles", "scaled"]
