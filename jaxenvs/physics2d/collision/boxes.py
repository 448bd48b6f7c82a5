"""Static boxes, parallel to the axes: their points of contact with a polygon (`b2CollidePolygons`)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d.collision.narrow_phase import FACE_OF_EDGE, Manifold, clip, manifold_of
from jaxenvs.physics2d.constants import RADIUS
from jaxenvs.physics2d.geometry import Frame, first_least, row
from jaxenvs.physics2d.kernels import once
from jaxenvs.physics2d.world import World

_NORMALS = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)], np.float32)  # of the sides that begin at the corners


def box_rows(boxes: jax.Array) -> jax.Array:
    """Return corners (N, 8) of boxes (N, 4), left, bottom, right, top [m]: counter-clockwise from the lower right."""
    left, bottom, right, top = boxes[:, 0], boxes[:, 1], boxes[:, 2], boxes[:, 3]
    return jnp.stack([right, bottom, right, top, left, top, left, bottom], axis=1)


def edge_rows(edges: jax.Array) -> jax.Array:
    """Return edges (N, 4) as rows (N, 8) beside boxes: the other corners are copies of the first, which win no tie."""
    return jnp.concatenate([edges, edges[:, :2], edges[:, :2]], axis=1)


class _Shape(NamedTuple):
    """Polygon in world coordinates: arrays (V,); the arrays of a box end with copies of the first corner."""

    x: jax.Array
    y: jax.Array
    normal_x: jax.Array  # of the side from a vertex to the next one
    normal_y: jax.Array
    after: jax.Array  # number of the vertex after each
    before: jax.Array
    middle_x: jax.Array
    middle_y: jax.Array


def collide_box(world: World, body: jax.Array, corners: jax.Array, frame: Frame) -> Manifold:
    """Return the manifold of a body and a box, as `narrow_phase.collide` does for an edge.

    Args:
      body: the number of the body.
      corners: (8,), of the box.
      frame: the body's frame.
    """
    vertices, normals = row(world.vertices, body), row(world.normals, body)
    polygon, box = _polygon(world, body, vertices, normals, frame), _box(corners, vertices.shape[0])
    sides, separations = jax.vmap(_farthest_side)(_pair(box, polygon), _pair(polygon, box))
    on_polygon = separations[1] > np.float32(0.98) * separations[0] + np.float32(0.001)
    reference, incident = (
        _Shape(*(jnp.where(on_polygon, a, b) for a, b in zip(*two, strict=True)))
        for two in ((polygon, box), (box, polygon))
    )
    here = jnp.where(on_polygon, sides[1], sides[0])
    there = reference.after[here]
    rx, ry = reference.normal_x[here], reference.normal_y[here]
    facing = first_least(rx * incident.normal_x + ry * incident.normal_y)
    following = incident.after[facing]
    segment = (
        (incident.x[facing], incident.y[facing]),
        (incident.x[following], incident.y[following]),
        here + (facing << 8) + FACE_OF_EDGE,
        here + (following << 8) + FACE_OF_EDGE,
    )
    low, high = (reference.x[here], reference.y[here]), (reference.x[there], reference.y[there])
    clipped = once(partial(clip, margin=float(2 * RADIUS)))
    segment, is_left_low = clipped(segment, (ry, -rx), low, here)
    segment, is_left_high = clipped(segment, (-ry, rx), high, there)
    is_left = (jnp.max(separations) <= 2 * RADIUS) & is_left_low & is_left_high
    half = np.float32(0.5)
    on_box = jnp.stack([half * (low[0] + high[0]), half * (low[1] + high[1])])
    plane = jnp.where(on_polygon, half * (vertices[here] + vertices[there]), on_box)
    return manifold_of(segment, is_left, on_polygon, (rx, ry), low, normals[here], plane, frame)


def _polygon(world: World, body: jax.Array, vertices: jax.Array, normals: jax.Array, frame: Frame) -> _Shape:
    x, y = frame.place(vertices[:, 0], vertices[:, 1])
    normal_x, normal_y = frame.turn(normals[:, 0], normals[:, 1])
    centroid = row(world.centroid, body)
    middle_x, middle_y = frame.place(centroid[0], centroid[1])
    after, before = row(world.next_vertex, body), row(world.previous_vertex, body)
    return _Shape(x, y, normal_x, normal_y, after, before, middle_x, middle_y)


def _box(corners: jax.Array, size: int) -> _Shape:
    numbers = np.concatenate([np.arange(4), np.zeros(size - 4, int)]).astype(np.int32)
    x, y = corners[0::2][numbers], corners[1::2][numbers]
    normals = jnp.asarray(_NORMALS[numbers])
    after, before = jnp.asarray((numbers + 1) % 4), jnp.asarray((numbers + 3) % 4)
    half = np.float32(0.5)
    return _Shape(x, y, normals[:, 0], normals[:, 1], after, before, half * (x[0] + x[2]), half * (y[0] + y[2]))


def _pair(first: _Shape, second: _Shape) -> _Shape:
    return _Shape(*map(jnp.stack, zip(first, second, strict=True)))


def _farthest_side(first: _Shape, second: _Shape) -> tuple[jax.Array, jax.Array]:
    """Return the side of the first shape that separates the two most, and the distance [m] (`b2FindMaxSeparation`).

    The search climbs from the side that faces the other's middle most: the result may be only a local maximum.
    """
    x, y = second.x[None] - first.x[:, None], second.y[None] - first.y[:, None]
    separations = jnp.min(first.normal_x[:, None] * x + first.normal_y[:, None] * y, axis=1)
    dx, dy = second.middle_x - first.middle_x, second.middle_y - first.middle_y
    start = first_least(-(first.normal_x * dx + first.normal_y * dy))
    here, back, ahead = (separations[i] for i in (start, first.before[start], first.after[start]))
    goes_back = (back > here) & (back > ahead)
    moves = goes_back | (ahead > here)
    following = jnp.where(goes_back, first.before, first.after)
    best = jnp.where(moves, following[start], start)
    for _ in range(separations.shape[0] - 2):
        further = following[best]
        best = jnp.where(moves & (separations[further] > separations[best]), further, best)
    return best, separations[best]
