"""Distance of an edge and a polygon, by GJK with a cached simplex (`b2Distance.cpp`), without their skins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d.constants import EPSILON, GJK_ITERATIONS
from jaxenvs.physics2d.geometry import Vector, first_least
from jaxenvs.transformations import varying


class Simplex(NamedTuple):
    """Up to three pairs of a vertex of the edge and one of the polygon, with which the next search begins.

    Attributes:
      metric: its length or area, by which an outdated one is recognized.
      count: int32.
      a, b: int32 (3,), numbers of vertices of the edge and of the polygon.
    """

    metric: jax.Array
    count: Any  # an array; a tuple has a method of this name
    a: jax.Array
    b: jax.Array


def no_simplex() -> Simplex:
    return Simplex(jnp.float32(0), jnp.int32(0), jnp.zeros(3, jnp.int32), jnp.zeros(3, jnp.int32))


def farthest(points: Vector, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the number of the point, from arrays of x and y, that is farthest in a direction; the first of several."""
    return first_least(-(points[0] * x + points[1] * y))


def distance(simplex: Simplex, edge: Vector, polygon: Vector) -> tuple[jax.Array, Simplex]:
    """Return the distance [m], 0 where the shapes overlap, and its simplex.

    Args:
      edge, polygon: pairs of arrays, x and y of the vertices in world coordinates.
    """

    def vertices(simplex: Simplex) -> Sequence[Vector]:
        """Return the vertices of the difference of the shapes that the simplex selects."""
        return [
            (polygon[0][simplex.b[i]] - edge[0][simplex.a[i]], polygon[1][simplex.b[i]] - edge[1][simplex.a[i]])
            for i in range(3)
        ]

    def metric(simplex: Simplex) -> jax.Array:
        p, q, r = vertices(simplex)
        (x, y), (u, v) = _minus(q, p), _minus(r, p)
        return jnp.where(
            simplex.count == 2, jnp.sqrt(x * x + y * y), jnp.where(simplex.count == 3, x * v - y * u, jnp.float32(0))
        )

    size = metric(simplex)
    has_changed = (size < np.float32(0.5) * simplex.metric) | (2 * simplex.metric < size) | (size < EPSILON)
    is_new = (simplex.count == 0) | ((simplex.count > 1) & has_changed)
    nothing = no_simplex()._replace(count=jnp.int32(1))
    simplex = jax.tree.map(lambda new, old: jnp.where(is_new, new, old), nothing, simplex)

    def iterate(carry: tuple[jax.Array, Simplex, Vector, jax.Array]) -> tuple[jax.Array, Simplex, Vector, jax.Array]:
        rounds, simplex, _, _ = carry
        before = simplex
        simplex, weights = _reduce(simplex, vertices(simplex))
        p, q, _ = vertices(simplex)
        e = _minus(q, p)
        is_left = e[1] * p[0] - e[0] * p[1] > 0  # whether the origin is on the left
        x = jnp.where(simplex.count == 1, -p[0], jnp.where(is_left, -e[1], e[1]))
        y = jnp.where(simplex.count == 1, -p[1], jnp.where(is_left, e[0], -e[0]))
        is_there = (simplex.count == 3) | (x * x + y * y < EPSILON * EPSILON)
        a, b = farthest(edge, -x, -y), farthest(polygon, x, y)
        is_known = jnp.any((before.a == a) & (before.b == b) & (np.arange(3) < before.count))
        goes_on = ~is_there & ~is_known
        here = goes_on & (np.arange(3) == simplex.count)
        grown = simplex._replace(
            count=jnp.where(goes_on, simplex.count + 1, simplex.count),
            a=jnp.where(here, a, simplex.a),
            b=jnp.where(here, b, simplex.b),
        )
        return rounds + 1, grown, weights, goes_on

    start = varying((jnp.int32(0), simplex, (jnp.float32(1), jnp.float32(0)), jnp.bool_(True)), edge, polygon, simplex)
    _, simplex, (u, v), _ = jax.lax.while_loop(lambda carry: (carry[0] < GJK_ITERATIONS) & carry[3], iterate, start)
    p, q, _ = vertices(simplex)
    is_point = simplex.count == 1
    x = jnp.where(is_point, p[0], u * p[0] + v * q[0])
    y = jnp.where(is_point, p[1], u * p[1] + v * q[1])
    gap = jnp.where(simplex.count == 3, jnp.float32(0), jnp.sqrt(x * x + y * y))
    return gap, simplex._replace(metric=metric(simplex))


# Regions of a triangle: a corner, a side, the inside. The arrays hold how many vertices are left in each region, and
# which come first and second: where the side from 2 to 3 is nearest, the third vertex replaces the first.
_CORNER1, _SIDE12, _SIDE13, _CORNER2, _CORNER3, _SIDE23, _INSIDE = range(7)
_COUNT = np.array([1, 2, 2, 1, 1, 2, 3], np.int32)
_FIRST = np.array([0, 0, 0, 1, 2, 2, 0], np.int32)
_SECOND = np.array([1, 1, 2, 1, 1, 1, 1], np.int32)


def _reduce(simplex: Simplex, vertices: Iterable[Vector]) -> tuple[Simplex, Vector]:
    """Return the part of a simplex that is nearest to the origin, and the weights of its first two vertices."""
    p1, p2, p3 = vertices
    e12, e13, e23 = _minus(p2, p1), _minus(p3, p1), _minus(p3, p2)
    d12_1, d12_2 = _dot(p2, e12), -_dot(p1, e12)
    d13_1, d13_2 = _dot(p3, e13), -_dot(p1, e13)
    d23_1, d23_2 = _dot(p3, e23), -_dot(p2, e23)
    area = _cross(e12, e13)
    d123_1, d123_2, d123_3 = area * _cross(p2, p3), area * _cross(p3, p1), area * _cross(p1, p2)
    of_two = jnp.where(d12_2 <= 0, _CORNER1, jnp.where(d12_1 <= 0, _CORNER2, _SIDE12))
    of_three: jax.Array | int = _INSIDE
    for part, is_here in reversed(
        (
            (_CORNER1, (d12_2 <= 0) & (d13_2 <= 0)),
            (_SIDE12, (d12_1 > 0) & (d12_2 > 0) & (d123_3 <= 0)),
            (_SIDE13, (d13_1 > 0) & (d13_2 > 0) & (d123_2 <= 0)),
            (_CORNER2, (d12_1 <= 0) & (d23_2 <= 0)),
            (_CORNER3, (d13_1 <= 0) & (d23_1 <= 0)),
            (_SIDE23, (d23_1 > 0) & (d23_2 > 0) & (d123_1 <= 0)),
        )
    ):
        of_three = jnp.where(is_here, part, of_three)
    region = jnp.where(simplex.count == 1, _CORNER1, jnp.where(simplex.count == 2, of_two, of_three))

    def share(part: jax.Array, other: jax.Array) -> jax.Array:
        whole = part + other
        return part * (1 / jnp.where(whole != 0, whole, 1))

    is_12, is_13, is_23 = region == _SIDE12, region == _SIDE13, region == _SIDE23
    weights = (
        jnp.where(is_12, share(d12_1, d12_2), jnp.where(is_13, share(d13_1, d13_2), share(d23_2, d23_1))),
        jnp.where(is_12, share(d12_2, d12_1), jnp.where(is_13, share(d13_2, d13_1), share(d23_1, d23_2))),
    )
    is_side = is_12 | is_13 | is_23
    weights = jnp.where(is_side, weights[0], 1), jnp.where(is_side, weights[1], 0)
    first, second = jnp.asarray(_FIRST)[region], jnp.asarray(_SECOND)[region]
    reduced = simplex._replace(
        count=jnp.asarray(_COUNT)[region],
        a=jnp.stack([simplex.a[first], simplex.a[second], simplex.a[2]]),
        b=jnp.stack([simplex.b[first], simplex.b[second], simplex.b[2]]),
    )
    return reduced, weights


def _minus(p: Vector, q: Vector) -> Vector:
    return p[0] - q[0], p[1] - q[1]


def _dot(p: Vector, q: Vector) -> jax.Array:
    return p[0] * q[0] + p[1] * q[1]


def _cross(p: Vector, q: Vector) -> jax.Array:
    return p[0] * q[1] - p[1] * q[0]
