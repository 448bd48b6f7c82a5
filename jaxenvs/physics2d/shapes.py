"""Convex polygons and their masses, as Box2D makes them: in NumPy, before any function is traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

_f = np.float32
_THIRD = _f(1) / _f(3)


@dataclasses.dataclass(frozen=True, eq=False)
class Polygon:
    """Convex polygon, counter-clockwise, in the frame of its body. float32.

    Attributes:
      vertices: (n, 2). Their order matters: it numbers the points of contacts and decides ties.
      normals: (n, 2), of the side from vertex i to vertex i + 1, outwards.
      centroid: (2,).
    """

    vertices: np.ndarray
    normals: np.ndarray
    centroid: np.ndarray


def polygon(points: Sequence[tuple[float, float]]) -> Polygon:
    """Return the convex hull of points (`b2PolygonShape::Set`): by gift wrapping, from the lowest of the right-most."""
    given = [(_f(x), _f(y)) for x, y in points]
    first = max(range(len(given)), key=lambda i: (given[i][0], -given[i][1]))
    order = [first]
    while True:
        here, end = given[order[-1]], 0
        for j in range(1, len(given)):
            if end == order[-1]:
                end = j
                continue
            to_end, to_j = _minus(given[end], here), _minus(given[j], here)
            turn = to_end[0] * to_j[1] - to_end[1] * to_j[0]
            if turn < 0 or (turn == 0 and _squared(to_j) > _squared(to_end)):
                end = j
        if end == first:
            break
        order.append(end)
    vertices = np.array([given[i] for i in order], _f)
    sides = np.roll(vertices, -1, axis=0) - vertices
    normals = np.stack([sides[:, 1], -sides[:, 0]], axis=1)
    normals = normals * (_f(1) / np.sqrt(normals[:, :1] ** 2 + normals[:, 1:] ** 2))
    area, moment = _f(0), np.zeros(2, _f)
    for a, b in zip(vertices, np.roll(vertices, -1, axis=0), strict=True):
        triangle = _f(0.5) * (a[0] * b[1] - a[1] * b[0])
        area += triangle
        moment += triangle * _THIRD * (a + b)
    return Polygon(vertices, normals, moment * (_f(1) / area))


def box(half_width: float, half_height: float) -> Polygon:
    """Return a rectangle about the origin (`b2PolygonShape::SetAsBox`); its first vertex is the lower left."""
    x, y = _f(half_width), _f(half_height)
    normals = np.array([(0, -1), (1, 0), (0, 1), (-1, 0)], _f)
    return Polygon(np.array([(-x, -y), (x, -y), (x, y), (-x, y)], _f), normals, np.zeros(2, _f))


@dataclasses.dataclass(frozen=True)
class Mass:
    """Mass data of a body of one shape: 1/m [1/kg], 1/I about the center [1/(kg m²)], and the center (2,) [m]."""

    inverse_mass: np.float32
    inverse_inertia: np.float32
    center: np.ndarray


def mass(shape: Polygon, density: float) -> Mass:
    """Return the mass of a shape (`b2PolygonShape::ComputeMass` and `b2Body::ResetMassData`). `density` in kg/m²."""
    vertices = shape.vertices
    total = np.zeros(2, _f)
    for vertex in vertices:
        total += vertex
    inside = total * (_f(1) / _f(len(vertices)))
    area, inertia, center = _f(0), _f(0), np.zeros(2, _f)
    for a, b in zip(vertices - inside, np.roll(vertices, -1, axis=0) - inside, strict=True):
        parallelogram = a[0] * b[1] - a[1] * b[0]
        triangle = _f(0.5) * parallelogram
        area += triangle
        center += triangle * _THIRD * (a + b)
        second = a * a + b * a + b * b
        inertia += (_f(0.25) * _THIRD * parallelogram) * (second[0] + second[1])
    kilograms = _f(density) * area
    center = center * (_f(1) / area)
    middle = center + inside
    inertia = _f(density) * inertia + kilograms * (_squared(middle) - _squared(center))
    inverse_mass = _f(1) / kilograms
    middle = kilograms * middle * inverse_mass
    inertia -= kilograms * _squared(middle)
    return Mass(inverse_mass, _f(1) / inertia, middle)


def _minus(a: tuple[np.float32, np.float32], b: tuple[np.float32, np.float32]) -> tuple[np.float32, np.float32]:
    return a[0] - b[0], a[1] - b[1]


def _squared(a: np.ndarray | tuple[np.float32, np.float32]) -> np.float32:
    return _f(a[0] * a[0] + a[1] * a[1])
