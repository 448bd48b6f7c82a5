"""The time at which a body that sweeps towards ground touches it: `b2TimeOfImpact` and `b2Distance`.

Which of the times within the tolerance is found depends on the path of the search, so that the path is followed.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tests.envs.box2d.walker.records import (
    EPSILON,
    HALF,
    ONE,
    PI,
    RADIUS,
    SLOP,
    TWO,
    ZERO,
    add,
    cross,
    dot,
    f,
    neg,
    normalized,
    rotate,
    rotation,
    scale,
    sub,
    tangent,
    transform,
    unrotate,
)

TARGET = max(SLOP, f(f(RADIUS + RADIUS) - f(f(3) * SLOP)))
TOLERANCE = f(f(0.25) * SLOP)
POINTS, SIDE_OF_GROUND, SIDE_OF_BODY = 0, 1, 2
SEPARATE, TOUCHING = 0, 1


@njit
def transform_at(body, a0, a, time):
    """b2Sweep::GetTransform: where the body is at a share `time` of its sweep, from angle a0 to a."""
    rest = ONE - time
    center = add(scale(rest, body.c0), scale(time, body.c))
    q = rotation(rest * a0 + time * a)
    return sub(center, rotate(q, body.center)), q


@njit
def support(shape, direction):
    best, highest = 0, dot(shape.vertices[0], direction)
    for i in range(1, shape.n):
        height = dot(shape.vertices[i], direction)
        if height > highest:
            best, highest = i, height
    return best


@njit
def metric(n, w):
    if n == 2:
        x, y = sub(w[0], w[1])
        return math.sqrt(x * x + y * y)
    if n == 3:
        return cross(sub(w[1], w[0]), sub(w[2], w[0]))
    return ZERO


# A simplex: `index` (4, 2), of the vertices of ground and body; `on` (4, 2, 2), these; `w` (4, 2), from the first to
# the second; `share` (4,), the barycentric coordinates of what is nearest to the origin.


@njit
def fill(index, on, w, k, ground, body, p, q, i, j):
    index[k, 0], index[k, 1] = i, j
    on[k, 0] = ground.vertices[i]
    on[k, 1, 0], on[k, 1, 1] = transform(p, q, body.vertices[j])
    w[k, 0], w[k, 1] = sub(on[k, 1], on[k, 0])


@njit
def keep(index, on, w, target, source):
    index[target], on[target], w[target] = index[source], on[source], w[source]


@njit
def solve_simplex(n, index, on, w, share):
    """b2Simplex::Solve2 and Solve3: drop what does not support the nearest point. Returns how many are left."""
    if n == 2:
        e = sub(w[1], w[0])
        d2 = -dot(w[0], e)
        if d2 <= ZERO:
            share[0] = ONE
            return 1
        d1 = dot(w[1], e)
        if d1 <= ZERO:
            share[0] = ONE
            keep(index, on, w, 0, 1)
            return 1
        inverse = ONE / (d1 + d2)
        share[0], share[1] = d1 * inverse, d2 * inverse
        return 2
    e12, e13, e23 = sub(w[1], w[0]), sub(w[2], w[0]), sub(w[2], w[1])
    d12_1, d12_2 = dot(w[1], e12), -dot(w[0], e12)
    d13_1, d13_2 = dot(w[2], e13), -dot(w[0], e13)
    d23_1, d23_2 = dot(w[2], e23), -dot(w[1], e23)
    n123 = cross(e12, e13)
    d1, d2, d3 = n123 * cross(w[1], w[2]), n123 * cross(w[2], w[0]), n123 * cross(w[0], w[1])
    if d12_2 <= ZERO and d13_2 <= ZERO:
        share[0] = ONE
        return 1
    if d12_1 > ZERO and d12_2 > ZERO and d3 <= ZERO:
        inverse = ONE / (d12_1 + d12_2)
        share[0], share[1] = d12_1 * inverse, d12_2 * inverse
        return 2
    if d13_1 > ZERO and d13_2 > ZERO and d2 <= ZERO:
        inverse = ONE / (d13_1 + d13_2)
        share[0], share[1] = d13_1 * inverse, d13_2 * inverse
        keep(index, on, w, 1, 2)
        return 2
    if d12_1 <= ZERO and d23_2 <= ZERO:
        share[0] = ONE
        keep(index, on, w, 0, 1)
        return 1
    if d13_1 <= ZERO and d23_1 <= ZERO:
        share[0] = ONE
        keep(index, on, w, 0, 2)
        return 1
    if d23_1 > ZERO and d23_2 > ZERO and d1 <= ZERO:
        inverse = ONE / (d23_1 + d23_2)
        share[1], share[0] = d23_1 * inverse, d23_2 * inverse
        keep(index, on, w, 0, 2)
        return 2
    inverse = ONE / (d1 + d2 + d3)
    share[0], share[1], share[2] = d1 * inverse, d2 * inverse, d3 * inverse
    return 3


@njit
def distance(cached_metric, cache, ground, body, p, q, counts):
    """b2Distance, from a cached simplex (`cache` (7,): its size, vertices of ground, of the body), which is renewed."""
    index, on = np.zeros((4, 2), np.int64), np.zeros((4, 2, 2), np.float32)
    w, share = np.zeros((4, 2), np.float32), np.zeros(4, np.float32)
    counts[3] += 1
    n = cache[0]
    for i in range(n):
        fill(index, on, w, i, ground, body, p, q, cache[1 + i], cache[4 + i])
    if n > 1:
        before, now = cached_metric[0], metric(n, w)
        if now < HALF * before or TWO * before < now or now < EPSILON:
            n = 0
    if n == 0:
        fill(index, on, w, 0, ground, body, p, q, 0, 0)
        share[0] = ONE
        n = 1
    seen = np.zeros((3, 2), np.int64)
    for _ in range(20):
        n_seen = n
        seen[:n] = index[:n]
        if n > 1:
            n = solve_simplex(n, index, on, w, share)
        if n == 3:
            break
        if n == 1:
            direction = neg((w[0, 0], w[0, 1]))
        else:
            e = sub(w[1], w[0])
            to_origin = neg((w[0, 0], w[0, 1]))
            direction = (-e[1], e[0]) if cross(e, to_origin) > ZERO else tangent(e)
        if dot(direction, direction) < EPSILON * EPSILON:
            break
        i, j = support(ground, neg(direction)), support(body, unrotate(q, direction))
        fill(index, on, w, n, ground, body, p, q, i, j)
        known = False
        for k in range(n_seen):
            known = known or (seen[k, 0] == i and seen[k, 1] == j)
        if known:
            break
        n += 1
    x, y = ZERO, ZERO
    if n == 1:
        x, y = sub(on[0, 0], on[0, 1])
    elif n == 2:
        on_ground = add(scale(share[0], on[0, 0]), scale(share[1], on[1, 0]))
        x, y = sub(on_ground, add(scale(share[0], on[0, 1]), scale(share[1], on[1, 1])))
    cached_metric[0] = metric(n, w)
    cache[0] = n
    for i in range(n):
        cache[1 + i], cache[4 + i] = index[i, 0], index[i, 1]
    return math.sqrt(x * x + y * y)


@njit
def middle(shape, i, j):
    return scale(HALF, add(shape.vertices[i], shape.vertices[j]))


@njit
def axis_of(cache, ground, body, p, q):
    """b2SeparationFunction::Initialize: the kind of the axis, the axis, and a point on the side that it belongs to."""
    i, j = cache[1], cache[4]
    if cache[0] == 1:
        axis = normalized(sub(transform(p, q, body.vertices[j]), ground.vertices[i]))
        return POINTS, axis, (ZERO, ZERO)
    if cache[1] == cache[2]:
        axis = normalized(tangent(sub(body.vertices[cache[5]], body.vertices[j])))
        point = middle(body, j, cache[5])
        if dot(sub(ground.vertices[i], transform(p, q, point)), rotate(q, axis)) < ZERO:
            axis = neg(axis)
        return SIDE_OF_BODY, axis, point
    axis = normalized(tangent(sub(ground.vertices[cache[2]], ground.vertices[i])))
    point = middle(ground, i, cache[2])
    if dot(sub(transform(p, q, body.vertices[j]), point), axis) < ZERO:
        axis = neg(axis)
    return SIDE_OF_GROUND, axis, point


@njit
def deepest(kind, axis, ground, body, q):
    """The vertices of least separation along an axis (FindMinSeparation)."""
    i = j = -1
    if kind == SIDE_OF_BODY:
        i = support(ground, neg(rotate(q, axis)))
    else:
        j = support(body, unrotate(q, neg(axis)))
        if kind == POINTS:
            i = support(ground, axis)
    return i, j


@njit
def separation(kind, axis, point, ground, body, p, q, i, j):
    if kind == POINTS:
        return dot(sub(transform(p, q, body.vertices[j]), ground.vertices[i]), axis)
    if kind == SIDE_OF_GROUND:
        return dot(sub(transform(p, q, body.vertices[j]), point), axis)
    return dot(sub(ground.vertices[i], transform(p, q, point)), rotate(q, axis))


@njit
def time_of_impact(ground, body, counts):
    """Whether the body touches ground before the end of its sweep, and when, as a share of it."""
    turns = TWO * PI * f(math.floor(body.a0 / (TWO * PI)))
    a0, a = body.a0 - turns, body.a - turns
    cached_metric, cache = np.zeros(1, np.float32), np.zeros(7, np.int64)
    counts[2] += 1
    t1 = ZERO
    for _ in range(20):
        p, q = transform_at(body, a0, a, t1)
        apart = distance(cached_metric, cache, ground, body, p, q, counts)
        if apart <= ZERO:
            return SEPARATE, ZERO  # overlapped
        if apart < TARGET + TOLERANCE:
            return TOUCHING, t1
        kind, axis, point = axis_of(cache, ground, body, p, q)
        t2 = ONE
        for _ in range(16):
            p, q = transform_at(body, a0, a, t2)
            i, j = deepest(kind, axis, ground, body, q)
            s2 = separation(kind, axis, point, ground, body, p, q, i, j)
            if s2 > TARGET + TOLERANCE:
                return SEPARATE, ONE
            if s2 > TARGET - TOLERANCE:
                t1 = t2
                break
            p, q = transform_at(body, a0, a, t1)
            s1 = separation(kind, axis, point, ground, body, p, q, i, j)
            if s1 < TARGET - TOLERANCE:
                return SEPARATE, t1  # failed
            if s1 <= TARGET + TOLERANCE:
                return TOUCHING, t1
            low, high = t1, t2
            for root in range(50):
                t = low + (TARGET - s1) * (high - low) / (s2 - s1) if root & 1 else HALF * (low + high)
                p, q = transform_at(body, a0, a, t)
                s = separation(kind, axis, point, ground, body, p, q, i, j)
                counts[4] += 1
                if abs(s - TARGET) < TOLERANCE:
                    t2 = t
                    break
                if s > TARGET:
                    low, s1 = t, s
                else:
                    high, s2 = t, s
    return SEPARATE, t1
