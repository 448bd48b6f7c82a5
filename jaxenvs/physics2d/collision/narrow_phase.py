"""Points of contact of an edge and a polygon (`b2CollideEdgeAndPolygon`, for an edge without neighbors)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import struct
from jaxenvs.physics2d.constants import RADIUS
from jaxenvs.physics2d.geometry import Frame, Vector, first_least, row
from jaxenvs.physics2d.kernels import once
from jaxenvs.physics2d.world import World

# Kinds of features in the id of a point, at their positions in it.
FACE_OF_EDGE, FACE_OF_POLYGON = np.int32(1 << 16), np.int32(1 << 24)


@struct
class Manifold:
    """Up to two points where a polygon touches an edge.

    Attributes:
      on_polygon: bool, the reference is a side of the polygon, not the edge. Then normal and plane are in the frame of
        the body, and points in world coordinates; else the other way round.
      count: int32, 0 to 2.
      point: (2, 2).
      id: int32 (2,), the features that meet in a point, by which the next step recognizes the point.
      normal: (2,), of the reference, outwards.
      plane: (2,), a point on the reference.
    """

    on_polygon: jax.Array
    count: jax.Array
    point: jax.Array
    id: jax.Array
    normal: jax.Array
    plane: jax.Array


def no_manifolds(number: int) -> Manifold:
    """Return a table of empty manifolds."""
    return Manifold(
        on_polygon=jnp.zeros(number, bool),
        count=jnp.zeros(number, jnp.int32),
        point=jnp.zeros((number, 2, 2), jnp.float32),
        id=jnp.zeros((number, 2), jnp.int32),
        normal=jnp.zeros((number, 2), jnp.float32),
        plane=jnp.zeros((number, 2), jnp.float32),
    )


def collide(world: World, body: jax.Array, edge: jax.Array, frame: Frame) -> Manifold:
    """Return the manifold of a body and an edge.

    Args:
      body: the number of the body.
      edge: (4,), from x, y to x, y.
      frame: the body's frame.
    """
    ax, ay, bx, by = edge[0], edge[1], edge[2], edge[3]
    vertices, normals = row(world.vertices, body), row(world.normals, body)
    following = row(world.next_vertex, body)
    (vx, vy), (mx, my) = frame.place(vertices[:, 0], vertices[:, 1]), frame.turn(normals[:, 0], normals[:, 1])

    # The edge's normal on the polygon's side.
    ex, ey = bx - ax, by - ay
    scale = 1 / jnp.sqrt(ex * ex + ey * ey)
    ex, ey = scale * ex, scale * ey
    centroid = row(world.centroid, body)
    cx, cy = frame.place(centroid[0], centroid[1])
    is_front = ey * (cx - ax) - ex * (cy - ay) >= 0
    nx, ny = jnp.where(is_front, ey, -ey), jnp.where(is_front, -ex, ex)

    # The reference is the feature that separates the two shapes more; the edge if both are similar.
    of_edge = jnp.min(nx * (vx - ax) + ny * (vy - ay))
    of_sides = jnp.minimum(-mx * (vx - ax) - my * (vy - ay), -mx * (vx - bx) - my * (vy - by))
    side = first_least(-of_sides)
    of_polygon = jnp.max(of_sides)
    is_near = (of_edge <= 2 * RADIUS) & (of_polygon <= 2 * RADIUS)
    on_polygon = of_polygon > np.float32(0.98) * of_edge + np.float32(0.001)
    here = jnp.where(on_polygon, side, first_least(nx * mx + ny * my))  # or the side that faces the edge most
    there = following[here]

    (px, py), (qx, qy) = (vx[here], vy[here]), (vx[there], vy[there])
    # Clip the other shape's segment by both ends of the reference.
    sx, sy = jnp.where(on_polygon, ax, px), jnp.where(on_polygon, ay, py)
    tx, ty = jnp.where(on_polygon, bx, qx), jnp.where(on_polygon, by, qy)
    of_corner = jnp.where(on_polygon, FACE_OF_POLYGON, FACE_OF_EDGE)
    segment = (
        (sx, sy),
        (tx, ty),
        (here << 8) + of_corner,
        (jnp.where(on_polygon, here, there) << 8) + of_corner,
    )
    first, last = (ax, ay), (bx, by)
    low: Any = tuple(jnp.where(on_polygon, p, jnp.where(is_front, a, b)) for p, a, b in zip((px, py), first, last))
    high: Any = tuple(jnp.where(on_polygon, q, jnp.where(is_front, b, a)) for q, a, b in zip((qx, qy), first, last))
    low_id = jnp.where(on_polygon, here, jnp.where(is_front, np.int32(0), np.int32(1)))
    high_id = jnp.where(on_polygon, there, jnp.where(is_front, np.int32(1), np.int32(0)))
    rx, ry = jnp.where(on_polygon, mx[here], nx), jnp.where(on_polygon, my[here], ny)
    segment, is_left_low = once(clip)(segment, (ry, -rx), low, low_id)
    segment, is_left_high = once(clip)(segment, (-ry, rx), high, high_id)
    is_left = is_near & is_left_low & is_left_high
    plane = jnp.where(on_polygon, vertices[here], jnp.stack([low[0], low[1]]))
    return manifold_of(segment, is_left, on_polygon, (rx, ry), low, normals[here], plane, frame)


Segment = tuple[Vector, Vector, jax.Array, jax.Array]


def manifold_of(
    segment: Segment,
    is_left: jax.Array,
    on_polygon: jax.Array,
    normal: Vector,
    low: Vector,
    own_normal: jax.Array,
    plane: jax.Array,
    frame: Frame,
) -> Manifold:
    """Return the manifold of the points of a clipped segment that are close to the reference.

    Args:
      is_left: whether anything of the segment is left.
      normal, low: of the reference in world coordinates, and its first end.
      own_normal: (2,), if the reference is the polygon's: its normal in the frame of the body.
      on_polygon, plane: as in a Manifold.
      frame: the body's frame.
    """
    points, ids, is_close = [], [], []
    for (x, y), id in zip(segment[:2], segment[2:], strict=True):
        is_close.append(normal[0] * (x - low[0]) + normal[1] * (y - low[1]) <= 2 * RADIUS)
        local = frame.turn_back(x - frame.x, y - frame.y)
        points.append(jnp.stack([jnp.where(on_polygon, x, local[0]), jnp.where(on_polygon, y, local[1])]))
        ids.append(jnp.where(on_polygon, swapped(id), id))
    number = is_close[0].astype(jnp.int32) + is_close[1].astype(jnp.int32)
    return Manifold(
        on_polygon=on_polygon,
        count=jnp.where(is_left, number, np.int32(0)),
        point=jnp.stack([jnp.where(is_close[0], points[0], points[1]), points[1]]),
        id=jnp.stack([jnp.where(is_close[0], ids[0], ids[1]), ids[1]]),
        normal=jnp.where(on_polygon, own_normal, jnp.stack([normal[0], normal[1]])),
        plane=plane,
    )


def clip(
    segment: Segment, normal: Vector, end: Vector, end_id: jax.Array, margin: float = 0.0
) -> tuple[Segment, jax.Array]:
    """Clip a segment by an end of the reference; also return whether two points are left (b2ClipSegmentToLine).

    Args:
      segment: two points, and their ids.
      margin: how far beyond the end it may lie [m].
    """
    (x0, y0), (x1, y1), id0, id1 = segment
    offset = normal[0] * end[0] + normal[1] * end[1] + margin
    d0 = normal[0] * x0 + normal[1] * y0 - offset
    d1 = normal[0] * x1 + normal[1] * y1 - offset
    keeps0, keeps1, crosses = d0 <= 0, d1 <= 0, d0 * d1 < 0
    share = d0 / jnp.where(crosses, d0 - d1, 1)
    x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
    id = end_id + (id0 & 0xFF00) + FACE_OF_POLYGON  # a vertex of the reference on a face of the other shape
    both = keeps0 & keeps1
    clipped = (
        (jnp.where(keeps0, x0, x1), jnp.where(keeps0, y0, y1)),
        (jnp.where(both, x1, x), jnp.where(both, y1, y)),
        jnp.where(keeps0, id0, id1),
        jnp.where(both, id1, id),
    )
    number = keeps0.astype(jnp.int32) + keeps1.astype(jnp.int32) + crosses.astype(jnp.int32)
    return clipped, number >= 2


def swapped(id: jax.Array) -> jax.Array:
    """Return an id with the features of the two shapes exchanged."""
    return ((id >> 8) & 0xFF) + ((id & 0xFF) << 8) + (((id >> 24) & 0xFF) << 16) + (((id >> 16) & 0xFF) << 24)
