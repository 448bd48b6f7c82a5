"""Manifolds of two polygons, as `b2CollidePolygons` makes them; ground is polygon A, at the identity."""

from __future__ import annotations

import numpy as np
from numba import njit

from tests.envs.box2d.walker.collision import FACE, VERTEX, clip, packed
from tests.envs.box2d.walker.records import (
    FACE_A,
    FACE_B,
    HALF,
    LARGEST,
    ONE,
    RADIUS,
    ZERO,
    add,
    dot,
    f,
    neg,
    normalized,
    rotate,
    scale,
    set2,
    sub,
    tangent,
    transform,
    unrotate,
)


@njit
def edge_separation(one, p1, q1, edge, two, p2, q2):
    normal_world = rotate(q1, one.normals[edge])
    normal = unrotate(q2, normal_world)
    index, lowest = 0, LARGEST
    for i in range(two.n):
        height = dot(two.vertices[i], normal)
        if height < lowest:
            index, lowest = i, height
    return dot(sub(transform(p2, q2, two.vertices[index]), transform(p1, q1, one.vertices[edge])), normal_world)


@njit
def max_separation(one, p1, q1, two, p2, q2):
    """b2FindMaxSeparation: a climb from the side that looks to the other's centroid. Returns side and separation."""
    towards = unrotate(q1, sub(transform(p2, q2, two.centroid), transform(p1, q1, one.centroid)))
    edge, highest = 0, -LARGEST
    for i in range(one.n):
        height = dot(one.normals[i], towards)
        if height > highest:
            edge, highest = i, height
    before, after = (edge - 1) % one.n, (edge + 1) % one.n
    s = edge_separation(one, p1, q1, edge, two, p2, q2)
    s_before = edge_separation(one, p1, q1, before, two, p2, q2)
    s_after = edge_separation(one, p1, q1, after, two, p2, q2)
    if s_before > s and s_before > s_after:
        step, best, best_s = -1, before, s_before
    elif s_after > s:
        step, best, best_s = 1, after, s_after
    else:
        return edge, s
    while True:
        edge = (best + step) % one.n
        s = edge_separation(one, p1, q1, edge, two, p2, q2)
        if s <= best_s:
            return best, best_s
        best, best_s = edge, s


@njit
def collide_polygons(ground, body, p, q, contact):
    """Write points, ids, normal and plane point of ground against body at a transform. Returns kind and count."""
    still, unturned = (ZERO, ZERO), (ZERO, ONE)
    radius = f(2) * RADIUS
    side_a, separation_a = max_separation(ground, still, unturned, body, p, q)
    if separation_a > radius:
        return 0, 0
    side_b, separation_b = max_separation(body, p, q, ground, still, unturned)
    if separation_b > radius:
        return 0, 0
    if separation_b > f(0.98) * separation_a + f(0.001):
        return FACE_B, points_on(body, p, q, side_b, ground, still, unturned, True, contact)
    return FACE_A, points_on(ground, still, unturned, side_a, body, p, q, False, contact)


@njit
def points_on(one, p1, q1, side, two, p2, q2, swap, contact):
    """Write the points of two polygons, of which a side of the first is the reference. Returns how many."""
    radius = f(2) * RADIUS
    facing = unrotate(q2, rotate(q1, one.normals[side]))
    index, lowest = 0, LARGEST
    for i in range(two.n):
        height = dot(facing, two.normals[i])
        if height < lowest:
            index, lowest = i, height
    points, ids = np.empty((2, 2), np.float32), np.zeros((2, 4), np.int64)
    for i in range(2):
        vertex = (index + i) % two.n
        set2(points[i], transform(p2, q2, two.vertices[vertex]))
        ids[i, 0], ids[i, 1], ids[i, 2], ids[i, 3] = side, vertex, FACE, VERTEX
    following = (side + 1) % one.n
    v1 = (one.vertices[side, 0], one.vertices[side, 1])
    v2 = (one.vertices[following, 0], one.vertices[following, 1])
    along = normalized(sub(v2, v1))
    normal, plane = tangent(along), scale(HALF, add(v1, v2))
    along_world = rotate(q1, along)
    normal_world = tangent(along_world)
    w1, w2 = transform(p1, q1, v1), transform(p1, q1, v2)
    front = dot(normal_world, w1)
    if not clip(points, ids, neg(along_world), -dot(along_world, w1) + radius, side):
        return 0
    if not clip(points, ids, along_world, dot(along_world, w2) + radius, following):
        return 0
    set2(contact.normal, normal)
    set2(contact.plane, plane)
    count = 0
    for i in range(2):
        if dot(normal_world, points[i]) - front <= radius:
            set2(contact.local[count], unrotate(q2, sub(points[i], p2)))
            contact.ids[count] = packed(ids[i], swap)
            count += 1
    return count
