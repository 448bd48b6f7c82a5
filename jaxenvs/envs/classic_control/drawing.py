"""Pictures: a canvas in the units of the world, drawn with Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Point = tuple[float, float]

PAPER = "#fbfaf7"
INK = "#2b2d42"
GREY = "#c8ccd4"
BLUE = "#3d6f9e"
LIGHT_BLUE = "#8fb3d3"
ACCENT = "#ee6c4d"

OVERSAMPLING = 3  # drawn this much larger and then shrunk, which smooths the edges


class Canvas:
    """A picture of the rectangle from (left, bottom) to (right, top); y points up, lengths are the world's.

    Raises:
      ImportError: Pillow is not installed.
    """

    def __init__(self, left: float, right: float, bottom: float, top: float, width: int = 600) -> None:
        try:
            from PIL import Image, ImageDraw
        except ImportError as error:
            raise ImportError('Pictures need Pillow: pip install "jaxenvs[sb3]"') from error
        self._origin = (left, top)
        self._size = (width, round(width * (top - bottom) / (right - left)))
        self._scale = OVERSAMPLING * width / (right - left)
        self._image = Image.new("RGB", (OVERSAMPLING * self._size[0], OVERSAMPLING * self._size[1]), PAPER)
        self._draw = ImageDraw.Draw(self._image)

    def polygon(self, points: Sequence[Point], color: str, at: Point = (0.0, 0.0), angle: float = 0.0) -> None:
        """A filled polygon, turned by `angle` [rad, counter-clockwise] and moved to `at`."""
        self._draw.polygon(self._pixels(points, at, angle), fill=color)

    def line(self, points: Sequence[Point], color: str, width: float) -> None:
        """A line through all points."""
        self._draw.line(self._pixels(points), fill=color, width=round(width * self._scale), joint="curve")

    def circle(self, center: Point, radius: float, color: str, at: Point = (0.0, 0.0), angle: float = 0.0) -> None:
        """A disc; its centre is turned and moved as the points of `polygon` are."""
        self._draw.ellipse(self._box(center, radius, at, angle), fill=color)

    def ring(self, center: Point, radius: float, color: str, width: float) -> None:
        """The outline of a disc."""
        self._draw.ellipse(self._box(center, radius), outline=color, width=round(width * self._scale))

    def rod(self, start: Point, end: Point, color: str, width: float) -> None:
        """A thick line with round ends."""
        self.line([start, end], color, width)
        for point in (start, end):
            self.circle(point, width / 2, color)

    def to_array(self) -> np.ndarray:
        """uint8, shape (height, width, 3)."""
        return np.array(self._image.reduce(OVERSAMPLING))

    def _pixels(self, points: Sequence[Point], at: Point = (0.0, 0.0), angle: float = 0.0) -> list[Point]:
        sine, cosine = math.sin(angle), math.cos(angle)
        moved = [(at[0] + cosine * x - sine * y, at[1] + sine * x + cosine * y) for x, y in points]
        return [((x - self._origin[0]) * self._scale, (self._origin[1] - y) * self._scale) for x, y in moved]

    def _box(
        self, center: Point, radius: float, at: Point = (0.0, 0.0), angle: float = 0.0
    ) -> tuple[float, float, float, float]:
        ((x, y),) = self._pixels([center], at, angle)
        reach = radius * self._scale
        return (x - reach, y - reach, x + reach, y + reach)
