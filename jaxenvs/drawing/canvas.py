"""Pictures made of shapes: a canvas in an environment's units of length, and shapes that are painted on it."""

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
from jaxenvs.jax_names import is_traced
from jaxenvs.picture_size import note_view

Number: TypeAlias = float | jax.Array
Point: TypeAlias = tuple[Number, Number] | jax.Array
Color: TypeAlias = tuple[int, int, int]

WHITE: Color = (255, 255, 255)
BLACK: Color = (0, 0, 0)


@struct
class Canvas:
    """Picture of a rectangle of an environment, to which each method adds a shape: `canvas = canvas.circle(...)`.

    x points right and y up; lengths are in the environment's units, angles [rad] turn counter-clockwise. A pixel takes
    a shape's color to the extent that the shape covers it: edges are smooth, and shapes thinner than a pixel are faint.
    All numbers may be traced. Pixels need not be square.

    Coverage of a pixel is computed as of an interval by a strip: from the signed distance between them, in the
    direction of the nearest edge, and the extent of the pixel in that direction. That is right along straight edges.
    """

    # Values from 0 to 255. The three channels of a pixel are neighbors in a row, as in the picture: over an axis of
    # length 3, XLA would compute number by number what it computes here in vectors, though three times.
    plane: jax.Array  # (height, 3 * width)
    x: jax.Array  # (1, 3 * width), of the centers of pixels, each three times
    y: jax.Array  # (height, 1)
    pixel: tuple[jax.Array, jax.Array]  # width and height of one
    corner: tuple[jax.Array, jax.Array]  # of a part: row and column of its plane in the whole plane

    @classmethod
    def blank(
        cls, height: int, width: int, left: Number, right: Number, bottom: Number, top: Number, color: Color = WHITE
    ) -> Self:
        """Create an empty canvas of `height` by `width` pixels, which shows (left, bottom) to (right, top)."""
        note_view(right - left, top - bottom)
        left, right, bottom, top = map(_float32, (left, right, bottom, top))
        columns = np.repeat(np.arange(width, dtype=np.float32) + 0.5, 3)[None, :]
        rows = np.arange(height, dtype=np.float32)[:, None] + 0.5
        pixel = ((right - left) / width, (top - bottom) / height)
        return cls(
            plane=jnp.broadcast_to(_in_channels(color, width), (height, 3 * width)),
            x=left + columns * pixel[0],
            y=top - rows * pixel[1],
            pixel=pixel,
            corner=(jnp.int32(0), jnp.int32(0)),
        )

    def picture(self) -> jax.Array:
        """Return the picture: uint8, shape (height, width, 3)."""
        height, width = self.plane.shape
        # At 2^23 floats are one apart, so that their last bits are the rounded number. A conversion guards against
        # numbers outside of uint8, which took a tenth longer for CartPole, and two fifths longer for two boxes alone.
        bits = jax.lax.bitcast_convert_type(self.plane + 2.0**23, jnp.uint32)
        return bits.astype(jnp.uint8).reshape(height, width // 3, 3)

    # --- Shapes -----------------------------------------------------------------------------------------------------

    def circle(self, center: Point, radius: Number, color: Color) -> Self:
        """Add a disc."""
        dx, dy = self._from(center)
        # Coverage is linear in the squared distance, which needs no root for each pixel and makes the area exact.
        radius, blur = _float32(radius), self._extent(math.sqrt(0.5), math.sqrt(0.5))
        slope = jnp.where(radius >= blur, 0.5 / (radius * blur), 2 / (radius + blur) ** 2)
        return self._paint(jnp.clip(slope * (radius * (radius + blur) - (dx * dx + dy * dy)), 0, 1), color)

    def ring(self, center: Point, radius: Number, color: Color, width: Number) -> Self:
        """Add a circle drawn by a pen of some width."""
        distance = _length(*self._from(center)) - _float32(radius)
        return self._paint(_strip(distance, width, self._extent(math.sqrt(0.5), math.sqrt(0.5))), color)

    def rod(self, start: Point, end: Point, color: Color, width: Number) -> Self:
        """Add a straight line with round ends, which extend by half its width."""
        return self._paint(self._rod(start, end, width), color)

    def line(self, points: Sequence[Point], color: Color, width: Number) -> Self:
        """Add a line through all points, with round ends and joints."""
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
        """Add a rectangle, turned by `angle` about (0, 0) and then moved to `at`."""
        left, right, bottom, top = map(_float32, (left, right, bottom, top))
        along, across = self._from(at)
        sine, cosine = _turn(angle)
        # if not turned, distances depend only on the column or the row
        if not (isinstance(angle, int | float) and angle == 0):
            along, across = cosine * along + sine * across, cosine * across - sine * along
        inside = _strip(along - (left + right) / 2, right - left, self._extent(cosine, sine))
        return self._paint(
            inside * _strip(across - (bottom + top) / 2, top - bottom, self._extent(sine, cosine)), color
        )

    def polygon(self, points: Sequence[Point], color: Color, at: Point = (0.0, 0.0), angle: Number = 0.0) -> Self:
        """Add a convex polygon, turned by `angle` about (0, 0) and then moved to `at`."""
        sine, cosine = _turn(angle)
        corners = [(at[0] + cosine * x - sine * y, at[1] + sine * x + cosine * y) for x, y in map(_point, points)]
        edges = list(itertools.pairwise([*corners, corners[0]]))
        is_clockwise = sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in edges) < 0
        # Each edge subtracts what is beyond it: right for thin shapes, while corners lose a little.
        coverage: Number = 1.0
        for start, end in edges:
            (x, y), _ = _direction(start, end)
            dx, dy = self._from(start)
            beyond = (dx * y - dy * x) * jnp.where(is_clockwise, -1, 1)
            coverage -= jnp.clip(0.5 + beyond * (1 / self._extent(y, x)), 0, 1)
        return self._paint(jnp.maximum(coverage, 0), color)

    def graph(self, function: Callable[[jax.Array], jax.Array], color: Color, width: Number) -> Self:
        """Add the curve y = function(x), drawn by a pen of some width; the function is applied to arrays."""
        height, slope, extent = self._graph(function)
        return self._paint(_strip(self.y - height, _float32(width) * _length(1.0, slope), extent), color)

    def area(self, function: Callable[[jax.Array], jax.Array], color: Color) -> Self:
        """Add the area below the curve y = function(x); the function is applied to arrays."""
        height, _, extent = self._graph(function)
        return self._paint(jnp.clip(0.5 + (height - self.y) / extent, 0, 1), color)

    # --- Parts ------------------------------------------------------------------------------------------------------

    def part(self, center: Point, share: tuple[float, float]) -> Self:
        """Return the pixels around a point, to paint small shapes in less time; `put` writes them back.

        Args:
          center: of the part, which is moved into the picture if it would extend beyond it.
          share: of the picture's width and height that the part has, plus two pixels.
        """
        height, width = self.plane.shape[0], self.plane.shape[1] // 3
        rows, columns = (min(size, math.ceil(part * size) + 2) for part, size in zip(share[::-1], (height, width)))
        x, y = self._from(center)
        row = jnp.round(y[0, 0] / self.pixel[1] - (rows - 1) / 2).astype(jnp.int32)
        column = jnp.round(-x[0, 0] / self.pixel[0] - (columns - 1) / 2).astype(jnp.int32)
        row, column = jnp.clip(row, 0, height - rows), 3 * jnp.clip(column, 0, width - columns)
        return dataclasses.replace(
            self,
            plane=jax.lax.dynamic_slice(self.plane, (row, column), (rows, 3 * columns)),
            x=jax.lax.dynamic_slice_in_dim(self.x, column, 3 * columns, axis=1),
            y=jax.lax.dynamic_slice_in_dim(self.y, row, rows),
            corner=(row, column),
        )

    def put(self, part: Self) -> Self:
        """Return the canvas with the pixels of one of its parts, as if the part's shapes had been added to it."""
        return dataclasses.replace(self, plane=jax.lax.dynamic_update_slice(self.plane, part.plane, part.corner))

    # --- How much of each pixel a shape covers ------------------------------------------------------------------------

    def _paint(self, coverage: jax.Array, color: Color) -> Self:
        over = _in_channels(color, self.plane.shape[1] // 3)
        return dataclasses.replace(self, plane=self.plane + coverage * (over - self.plane))

    def _from(self, point: Point) -> tuple[jax.Array, jax.Array]:
        """Return the distances from a point to the centers of pixels."""
        x, y = _point(point)
        return self.x - x, self.y - y

    def _extent(self, x: Number, y: Number) -> jax.Array:
        """Return the extent of a pixel in the direction (x, y), of length 1: the interval with the pixel's variance."""
        return _length(x * self.pixel[0], y * self.pixel[1])

    def _rod(self, start: Point, end: Point, width: Number) -> jax.Array:
        dx, dy = self._from(start)
        (x, y), length = _direction(start, end)
        along, across = x * dx + y * dy, x * dy - y * dx
        beyond_end = jnp.maximum(jnp.abs(along - length / 2) - length / 2, 0)
        return _strip(_length(beyond_end, across), width, self._extent(y, x))

    def _graph(self, function: Callable[[jax.Array], jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return height and slope in each column, and the extent of a pixel across the curve, measured upwards."""
        height, slope = jax.jvp(function, (self.x,), (jnp.ones_like(self.x),))
        return height, slope, _length(self.pixel[1], slope * self.pixel[0])


def background(paint: Callable[..., Canvas], *arguments: object) -> Canvas:
    """Return the canvas `paint(*arguments)` of what does not move, computed once for a whole batch.

    If no argument is traced, it is computed now, while tracing, else at each call of the compiled function. Otherwise
    XLA would fuse it with the moving shapes in front, and compute it for each picture.
    """
    traced = [leaf for leaf in jax.tree.leaves(arguments) if is_traced(leaf)]
    if not traced:
        with jax.ensure_compile_time_eval():
            return paint(*arguments)

    def alone() -> Canvas:
        return paint(*arguments)

    def nothing() -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(alone))

    def in_a_branch() -> Any:  # XLA fuses nothing out of a branch, and cannot know that it is taken
        return jax.lax.cond(jnp.isfinite(_float32(traced[0])).all(), alone, nothing)

    canvas: Canvas = jax.lax.platform_dependent(cpu=in_a_branch, default=alone)
    return canvas


def _strip(distance: jax.Array, width: Number, extent: jax.Array) -> jax.Array:
    """Return how much of an interval of length `extent` a strip covers, given the distance between their middles."""
    width = _float32(width)
    covered = ((width + extent) / 2 - jnp.abs(distance)) * (1 / extent)
    return jnp.clip(covered, 0, jnp.minimum(1, width / extent))


def _float32(value: Number) -> jax.Array:
    """Convert to float32: pictures need no more digits, though the environment may have them."""
    return jnp.asarray(value, jnp.float32)


def _point(point: Point) -> tuple[jax.Array, jax.Array]:
    return _float32(point[0]), _float32(point[1])


def _turn(angle: Number) -> tuple[jax.Array, jax.Array]:
    """Return sine and cosine."""
    return jnp.sin(_float32(angle)), jnp.cos(_float32(angle))


def _length(x: Number, y: Number) -> jax.Array:
    """Compute `jnp.hypot` without its guard against overflow."""
    return jnp.sqrt(jnp.square(x) + jnp.square(y))


def _direction(start: Point, end: Point) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Return the unit vector from one point to another, and the distance. From a point to itself: (0, 0)."""
    (x0, y0), (x1, y1) = _point(start), _point(end)
    length = _length(x1 - x0, y1 - y0)
    scale = 1 / jnp.maximum(length, np.finfo(np.float32).tiny)
    return (scale * (x1 - x0), scale * (y1 - y0)), length


def _in_channels(color: Color, width: int) -> jax.Array:
    return jnp.asarray(np.tile(np.asarray(color, np.float32), width)[None, :])
