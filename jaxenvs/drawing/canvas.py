"""Pictures made of shapes: a canvas in the units of the world, and what is painted on it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import struct

Number: TypeAlias = float | jax.Array
Point: TypeAlias = tuple[Number, Number] | jax.Array
Color: TypeAlias = tuple[int, int, int]

WHITE: Color = (255, 255, 255)
BLACK: Color = (0, 0, 0)


@struct
class Canvas:
    """A picture of a rectangle of the world, to which each method adds a shape: `canvas = canvas.circle(...)`.

    x points right and y up; lengths are the world's, angles counter-clockwise [rad]. A pixel takes as much of a
    shape's color as the shape covers of it, so that edges are smooth and what is thinner than a pixel is faint. All
    numbers may be traced; where they do not depend on a batch, the picture so far is made once for the whole of it.

    Distances are taken to the axis of a shape, and the coverage of a pixel from that of a strip of the pixel's extent
    in that direction: right for straight edges, and near it for round ones.
    """

    # What is painted, from 0 to 255. The three channels of a pixel stand beside each other in a row, as in the picture:
    # with an axis of their own, of length 3, XLA would compute single numbers where here it computes vectors.
    plane: jax.Array  # (height, 3 * width)
    x: jax.Array  # (1, 3 * width), of the pixels' centres; for each channel, as all that is computed from it
    y: jax.Array  # (height, 1)
    pixel: tuple[jax.Array, jax.Array]  # width and height of one

    @classmethod
    def blank(
        cls, height: int, width: int, left: Number, right: Number, bottom: Number, top: Number, color: Color = WHITE
    ) -> Self:
        """An empty canvas of `height` by `width` pixels, which shows the world from (left, bottom) to (right, top)."""
        left, right, bottom, top = (jnp.asarray(bound, jnp.float32) for bound in (left, right, bottom, top))
        columns = np.repeat(np.arange(width, dtype=np.float32) + 0.5, 3)[None, :]
        rows = np.arange(height, dtype=np.float32)[:, None] + 0.5
        pixel = ((right - left) / width, (top - bottom) / height)
        return cls(
            plane=jnp.asarray(np.broadcast_to(_in_channels(color, width), (height, 3 * width))),
            x=left + columns * pixel[0],
            y=top - rows * pixel[1],
            pixel=pixel,
        )

    def picture(self) -> jax.Array:
        """uint8, shape (height, width, 3)."""
        height, width = self.plane.shape
        # Where floats are one apart their last bits are an integer, rounded: a third faster than a conversion.
        bits = jax.lax.bitcast_convert_type(self.plane + 2.0**23, jnp.uint32)
        return bits.astype(jnp.uint8).reshape(height, width // 3, 3)

    # --- Shapes -----------------------------------------------------------------------------------------------------

    def circle(self, center: Point, radius: Number, color: Color) -> Self:
        """A disc."""
        dx, dy = self._from(center)
        # Linear in the squared distance: no root for each pixel, and the area is exact.
        reach, blur = _float32(radius), self._extent(1.0, 1.0) / math.sqrt(2)
        slope = jnp.where(reach >= blur, 0.5 / (reach * blur), 2 / (reach + blur) ** 2)
        return self._paint(jnp.clip(slope * (reach * (reach + blur) - (dx * dx + dy * dy)), 0, 1), color)

    def ring(self, center: Point, radius: Number, color: Color, width: Number) -> Self:
        """A circle drawn by a pen of some width."""
        dx, dy = self._from(center)
        distance = _hypotenuse(dx, dy) - radius
        return self._paint(_strip(distance, _float32(width) / 2, self._extent(1.0, 1.0) / math.sqrt(2)), color)

    def rod(self, start: Point, end: Point, color: Color, width: Number) -> Self:
        """A straight line with round ends."""
        return self._paint(self._rod(start, end, width), color)

    def line(self, points: Sequence[Point], color: Color, width: Number) -> Self:
        """A line through all points, with round ends and joints."""
        rods = [self._rod(start, end, width) for start, end in itertools.pairwise(points)]
        return self._paint(jnp.stack(rods).max(0), color)

    def box(
        self,
        left: Number,
        right: Number,
        bottom: Number,
        top: Number,
        color: Color,
        at: Point = (0.0, 0.0),
        angle: Number = 0.0,
    ) -> Self:
        """A rectangle, turned by `angle` about (0, 0) and then moved to `at`."""
        dx, dy = self._from(at)
        sine, cosine = _turn(angle)
        along, across = cosine * dx + sine * dy, cosine * dy - sine * dx
        if isinstance(angle, int | float) and angle == 0:
            along, across = dx, dy  # of the columns and of the rows alone
        coverage = _strip(along - (left + right) / 2, _float32(right - left) / 2, self._extent(cosine, sine))
        coverage *= _strip(across - (bottom + top) / 2, _float32(top - bottom) / 2, self._extent(sine, cosine))
        return self._paint(coverage, color)

    def polygon(self, points: Sequence[Point], color: Color, at: Point = (0.0, 0.0), angle: Number = 0.0) -> Self:
        """The inside of a convex polygon, turned by `angle` about (0, 0) and then moved to `at`."""
        sine, cosine = _turn(angle)
        corners = [(at[0] + cosine * x - sine * y, at[1] + sine * x + cosine * y) for x, y in points]
        edges = list(itertools.pairwise([*corners, corners[0]]))
        is_clockwise = sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in edges) < 0
        # Each edge takes away what is outside of it: the corners lose a little, what is thin is right.
        coverage: Any = 1.0
        for start, end in edges:
            along, _ = _direction(start, end)
            dx, dy = self._from(start)
            outside = (dx * along[1] - dy * along[0]) * jnp.where(is_clockwise, -1, 1)
            coverage -= jnp.clip(0.5 + outside * (1 / self._extent(along[1], along[0])), 0, 1)
        return self._paint(jnp.maximum(coverage, 0), color)

    def graph(self, function: Callable[[jax.Array], jax.Array], color: Color, width: Number) -> Self:
        """The curve y = function(x), drawn by a pen of some width. The function is applied to arrays."""
        height, slope, extent = self._graph(function)
        return self._paint(_strip(self.y - height, width / 2 * _hypotenuse(1.0, slope), extent), color)

    def area(self, function: Callable[[jax.Array], jax.Array], color: Color) -> Self:
        """All below the curve y = function(x). The function is applied to arrays."""
        height, _, extent = self._graph(function)
        return self._paint(jnp.clip(0.5 + (height - self.y) / extent, 0, 1), color)

    # --- How much of each pixel --------------------------------------------------------------------------------------

    def _paint(self, coverage: jax.Array, color: Color) -> Self:
        over = _in_channels(color, self.plane.shape[1] // 3)
        return dataclasses.replace(self, plane=self.plane + coverage * (over - self.plane))

    def _from(self, point: Point) -> tuple[jax.Array, jax.Array]:
        """From a point to the pixels' centres."""
        return self.x - _float32(point[0]), self.y - _float32(point[1])

    def _extent(self, x: Number, y: Number) -> jax.Array:
        """Of a pixel in the direction (x, y), of length 1: the width of the strip that is as spread out as the pixel."""
        return _hypotenuse(x * self.pixel[0], y * self.pixel[1])

    def _rod(self, start: Point, end: Point, width: Number) -> jax.Array:
        dx, dy = self._from(start)
        (cosine, sine), length = _direction(start, end)
        along, across = cosine * dx + sine * dy, cosine * dy - sine * dx
        beyond = jnp.maximum(jnp.abs(along - length / 2) - length / 2, 0)
        distance = _hypotenuse(beyond, across)
        return _strip(distance, _float32(width) / 2, self._extent(sine, cosine))

    def _graph(self, function: Callable[[jax.Array], jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Height and slope over each column, and the extent of a pixel across the curve, measured upwards."""
        height, slope = jax.jvp(function, (self.x,), (jnp.ones_like(self.x),))
        return height, slope, _hypotenuse(self.pixel[1], slope * self.pixel[0])


def background(paint: Callable[..., Canvas], *arguments: Any) -> Canvas:
    """The canvas `paint(*arguments)`, of what stands still. Of numbers that are not traced it is computed now, once.

    Otherwise XLA would fuse it with what moves over it, and compute it for each picture of a batch.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments)):
        return paint(*arguments)
    with jax.ensure_compile_time_eval():
        return paint(*arguments)


_TINY = float(np.finfo(np.float32).tiny)


def _float32(value: Number) -> jax.Array:
    """Pictures need no more digits, also where the world has them."""
    return jnp.asarray(value, jnp.float32)


def _turn(angle: Number) -> tuple[jax.Array, jax.Array]:
    return jnp.sin(_float32(angle)), jnp.cos(_float32(angle))


def _hypotenuse(x: Number, y: Number) -> jax.Array:
    """As `jnp.hypot`, which also guards against overflow."""
    return jnp.sqrt(x * x + y * y)


def _direction(start: Point, end: Point) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """From one point to another, of length 1, and how far it is."""
    x, y = _float32(end[0]) - start[0], _float32(end[1]) - start[1]
    length = _hypotenuse(x, y)
    scale = 1 / jnp.maximum(length, _TINY)
    return (scale * x, scale * y), length


def _in_channels(color: Color, width: int) -> np.ndarray:
    return np.tile(np.asarray(color, np.float32), width)[None, :]


def _strip(distance: jax.Array, half_width: Number, extent: Number) -> jax.Array:
    """How much of an interval of length `extent` lies in a strip, from the distance between their middles."""
    coverage = (half_width + extent / 2 - jnp.abs(distance)) * (1 / extent)
    return jnp.clip(coverage, 0, jnp.minimum(1, 2 * half_width / extent))
