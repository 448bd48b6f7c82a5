"""Pictures inside jit, for `Environment.draw`: pure functions of numbers, which can be batched and compiled."""

from jaxenvs.drawing.tiles import draw_tiles

__all__ = ["draw_tiles"]
