"""Manifolds, as `b2EPCollider::Collide` makes them of a polygon and an edge without neighbours, at the identity."""

from __future__ import annotations

import numpy as np
from numba import njit

from tests.envs.box2d.walker.records import (
    ANGULAR_SLOP,
    CORNERS,
    FACE_A,
    FACE_B,
    LARGEST,
    RADIUS,
    ZERO,
    dot,
    f,
    neg,
    normalized,
    rotate,
    set2,
    sub,
    tangent,
    transform,
    unrotate,
)

VERTEX, FACE = 0, 1


@njit
def clip(points, ids, normal, offset, vertex):
    """b2ClipSegmentToLine, in place. Returns whether two points are left. ids: index A, index B, type A, type B."""
    first, second = dot(normal, points[0]) - offset, dot(normal, points[1]) - offset
    kept = np.empty((2, 2), np.float32)
    kept_ids = np.empty((2, 4), np.int64)
    n = 0
    if first <= ZERO:
        kept[n], kept_ids[n] = points[0], ids[0]
        n += 1
    if second <= ZERO:
        kept[n], kept_ids[n] = points[1], ids[1]
        n += 1
    if first * second < ZERO:
        t = first / (first - second)
        kept[n, 0] = points[0, 0] + t * (points[1, 0] - points[0, 0])
        kept[n, 1] = points[0, 1] + t * (points[1, 1] - points[0, 1])
        kept_ids[n, 0], kept_ids[n, 1], kept_ids[n, 2], kept_ids[n, 3] = vertex, ids[0, 1], VERTEX, FACE
        n += 1
    if n < 2:
        return False
    points[:], ids[:] = kept, kept_ids
    return True


@njit
def packed(id, swap):
    if swap:
        return id[1] | (id[0] << 8) | (id[3] << 16) | (id[2] << 24)
    return id[0] | (id[1] << 8) | (id[2] << 16) | (id[3] << 24)


@njit
def collide_edge(ground, body, p, q, contact):
    """Write points, ids, normal and plane point of edge against polygon at a transform. Returns kind and count."""
    n = body.n
    v1, v2 = (ground.vertices[0, 0], ground.vertices[0, 1]), (ground.vertices[1, 0], ground.vertices[1, 1])
    normal1 = tangent(normalized(sub(v2, v1)))
    front = dot(normal1, sub(transform(p, q, body.centroid), v1)) >= ZERO
    normal = normal1 if front else neg(normal1)
    lower_limit = neg(normal)
    vertices = np.empty((CORNERS, 2), np.float32)
    normals = np.empty((CORNERS, 2), np.float32)
    for i in range(n):
        set2(vertices[i], transform(p, q, body.vertices[i]))
        set2(normals[i], rotate(q, body.normals[i]))
    radius = f(2) * RADIUS
    edge_separation = LARGEST
    for i in range(n):
        s = dot(normal, sub(vertices[i], v1))
        if s < edge_separation:
            edge_separation = s
    if edge_separation > radius:
        return 0, 0
    side, polygon_separation = -1, -LARGEST
    for i in range(n):
        outward = neg(normals[i])
        s1, s2 = dot(outward, sub(vertices[i], v1)), dot(outward, sub(vertices[i], v2))
        s = s1 if s1 < s2 else s2
        if s > radius:
            return 0, 0
        if dot(sub(outward, lower_limit), normal) < -ANGULAR_SLOP:  # both limits are the same without neighbours
            continue
        if s > polygon_separation:
            side, polygon_separation = i, s
    by_polygon = side >= 0 and polygon_separation > f(0.98) * edge_separation + f(0.001)
    points = np.empty((2, 2), np.float32)
    ids = np.zeros((2, 4), np.int64)
    if by_polygon:
        set2(points[0], v1)
        set2(points[1], v2)
        ids[0, 1] = ids[1, 1] = side
        ids[0, 3] = ids[1, 3] = FACE
        r1 = side
        r2 = r1 + 1 if r1 + 1 < n else 0
        from_, to = (vertices[r1, 0], vertices[r1, 1]), (vertices[r2, 0], vertices[r2, 1])
        reference = (normals[r1, 0], normals[r1, 1])
    else:
        best, lowest = 0, dot(normal, normals[0])
        for i in range(1, n):
            s = dot(normal, normals[i])
            if s < lowest:
                best, lowest = i, s
        following = best + 1 if best + 1 < n else 0
        points[0], points[1] = vertices[best], vertices[following]
        ids[0, 1], ids[1, 1] = best, following
        ids[0, 2] = ids[1, 2] = FACE
        if front:
            r1, r2, from_, to, reference = 0, 1, v1, v2, normal1
        else:
            r1, r2, from_, to, reference = 1, 0, v2, v1, neg(normal1)
    side1 = tangent(reference)
    side2 = neg(side1)
    if not clip(points, ids, side1, dot(side1, from_), r1) or not clip(points, ids, side2, dot(side2, to), r2):
        return 0, 0
    if by_polygon:
        contact.normal[:], contact.plane[:] = body.normals[side], body.vertices[side]
    else:
        set2(contact.normal, reference)
        set2(contact.plane, from_)
    count = 0
    for i in range(2):
        if dot(reference, sub(points[i], from_)) <= radius:
            if by_polygon:
                contact.local[count] = points[i]
            else:
                set2(contact.local[count], unrotate(q, sub(points[i], p)))
            contact.ids[count] = packed(ids[i], by_polygon)
            count += 1
    return (FACE_B if by_polygon else FACE_A), count
