"""What a world of the scalar specification is made of: Box2D's constants, its structures as records, plane vectors.

All numbers are float32 and each operation stands in the order in which Box2D 2.3.10 does it, so that results can be
compared bit by bit. Numba contracts and reassociates nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

f = np.float32
ZERO, HALF, ONE, TWO = f(0), f(0.5), f(1), f(2)
EPSILON, LARGEST = f(np.finfo(np.float32).eps), f(np.finfo(np.float32).max)
PI = f(3.14159265359)

# Common/b2Settings.h
SLOP = f(0.005)
ANGULAR_SLOP = f(f(TWO / f(180)) * PI)
RADIUS = f(TWO * SLOP)  # of polygons and of edges
BAUMGARTE, TOI_BAUMGARTE = f(0.2), f(0.75)
MAX_LINEAR_CORRECTION = f(0.2)
MAX_ANGULAR_CORRECTION = f(f(f(8) / f(180)) * PI)
MAX_TRANSLATION = f(2)
MAX_ROTATION = f(HALF * PI)
TIME_TO_SLEEP = f(0.5)
LINEAR_SLEEP = f(f(0.01) * f(0.01))
ANGULAR_SLEEP = f(ANGULAR_SLOP * ANGULAR_SLOP)
BOX_EXTENSION = f(0.1)

CORNERS = 8
BODY = np.dtype(
    [
        ("c0", f, 2), ("a0", f), ("c", f, 2), ("a", f), ("alpha0", f),  # b2Sweep
        ("p", f, 2), ("q", f, 2),  # b2Transform: position of the origin; sine, cosine
        ("v", f, 2), ("w", f), ("force", f, 2), ("torque", f), ("sleep", f), ("awake", np.bool_),
        ("inv_m", f), ("inv_i", f), ("center", f, 2), ("friction", f),
        ("n", np.int32), ("vertices", f, (CORNERS, 2)), ("normals", f, (CORNERS, 2)), ("centroid", f, 2),
        ("box", f, 4), ("moved", np.bool_),  # the fat box: left, bottom, right, top
    ],
    align=True,
)  # fmt: skip
GROUND = np.dtype(  # a fixture that does not move, in the world's coordinates; two vertices: an edge
    [
        ("n", np.int32), ("vertices", f, (CORNERS, 2)), ("normals", f, (CORNERS, 2)), ("centroid", f, 2),
        ("friction", f), ("box", f, 4), ("body", np.int32),
    ],
    align=True,
)  # fmt: skip
JOINT = np.dtype(
    [
        ("a", np.int32), ("b", np.int32), ("anchor_a", f, 2), ("anchor_b", f, 2),  # from the centres of mass
        ("reference", f), ("lower", f), ("upper", f), ("speed", f), ("max_torque", f),
        ("impulse", f, 3), ("motor", f), ("limit", np.int32),
        ("ra", f, 2), ("rb", f, 2), ("k", f, 6), ("motor_mass", f),  # xx, xy, xz, yy, yz, zz
    ],
    align=True,
)  # fmt: skip
FREE, AT_LOWER, AT_UPPER = 0, 1, 2
CONTACT = np.dtype(
    [
        ("body", np.int32), ("ground", np.int32), ("kind", np.int32), ("count", np.int32), ("ids", np.int64, 2),
        ("local", f, (2, 2)), ("impulse", f, (2, 2)), ("normal", f, 2), ("plane", f, 2),
        ("touching", np.bool_), ("enabled", np.bool_), ("in_island", np.bool_),
        ("toi", f), ("toi_known", np.bool_), ("toi_count", np.int32),
    ],
    align=True,
)  # fmt: skip
FACE_A, FACE_B = 1, 2


class World(NamedTuple):
    """A world as Numba takes it. A contact's fixture A is always ground, its fixture B a body's only polygon."""

    bodies: Any  # BODY (n,), in order of creation
    grounds: Any  # GROUND (n,), in order of creation, all created before the bodies
    alpha0: Any  # float32 (n,), of the static bodies that grounds belong to
    joints: Any  # JOINT (n,)
    contacts: Any  # CONTACT (capacity,), the oldest first: against the order of Box2D's lists
    n_contacts: Any  # int (1,)
    island: Any  # int (bodies,): indices of bodies in the order in which Box2D walks the island
    island_joints: Any  # int (joints,)
    fallen: Any  # bool (1,): bodies[0] has begun to touch
    legs: Any  # bool (bodies,): the flag that beginnings set and ends clear
    counts: Any  # int (6,): touching contacts, position iterations, calls of TOI and GJK, roots, events of TOI


@njit
def dot(a, b):
    return a[0] * b[0] + a[1] * b[1]


@njit
def cross(a, b):
    return a[0] * b[1] - a[1] * b[0]


@njit
def add(a, b):
    return a[0] + b[0], a[1] + b[1]


@njit
def sub(a, b):
    return a[0] - b[0], a[1] - b[1]


@njit
def scale(s, a):
    return s * a[0], s * a[1]


@njit
def neg(a):
    return -a[0], -a[1]


@njit
def tangent(n):
    """b2Cross(n, 1)."""
    return n[1], -n[0]


@njit
def turn(w, r):
    """b2Cross(w, r): the velocity of a point r from the centre."""
    return -w * r[1], w * r[0]


@njit
def normalized(a):
    length = math.sqrt(a[0] * a[0] + a[1] * a[1])
    if length < EPSILON:
        return a[0], a[1]
    inverse = ONE / length
    return a[0] * inverse, a[1] * inverse


@njit
def least(a, b):
    return a if a < b else b


@njit
def greatest(a, b):
    return a if a > b else b


@njit
def clamp(a, low, high):
    return greatest(low, least(a, high))


@njit
def rotation(angle):
    return math.sin(angle), math.cos(angle)


@njit
def rotate(q, v):
    return q[1] * v[0] - q[0] * v[1], q[0] * v[0] + q[1] * v[1]


@njit
def unrotate(q, v):
    return q[1] * v[0] + q[0] * v[1], -q[0] * v[0] + q[1] * v[1]


@njit
def transform(p, q, v):
    x, y = rotate(q, v)
    return x + p[0], y + p[1]


@njit
def origin(center, q, local_center):
    """Where the origin of a body is whose centre of mass is at `center`."""
    return sub(center, rotate(q, local_center))


@njit
def set2(target, value):
    target[0], target[1] = value
