"""Polygons and their masses, as `b2PolygonShape` and `b2Body::ResetMassData` make them, in float32."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.envs.box2d.walker.records import BODY, GROUND, ONE, f

THIRD = f(ONE / f(3))


class Polygon(NamedTuple):
    vertices: np.ndarray
    normals: np.ndarray
    centroid: np.ndarray


def cross(a: np.ndarray, b: np.ndarray) -> Any:
    return a[0] * b[1] - a[1] * b[0]


def polygon(points: list[tuple[float, float]]) -> Polygon:
    """A convex polygon, whose vertices are walked counter-clockwise from the right-most, lowest one."""
    given = np.array(points, f)
    start = max(range(len(given)), key=lambda i: (given[i, 0], -given[i, 1]))
    order, here = [], start
    while not order or here != start:
        order.append(here)
        end = 0
        for j in range(1, len(given)):
            if end == here:
                end = j
                continue
            r, v = given[end] - given[here], given[j] - given[here]
            c = cross(r, v)
            if c < 0 or (c == 0 and (v * v).sum() > (r * r).sum()):
                end = j
        here = end
    vertices = given[order]
    edges = np.roll(vertices, -1, 0) - vertices
    normals = np.stack([edges[:, 1], -edges[:, 0]], 1)
    normals *= (ONE / np.sqrt(normals[:, 0] * normals[:, 0] + normals[:, 1] * normals[:, 1]))[:, None]
    center, area = np.zeros(2, f), f(0)
    for a, b in zip(vertices, np.roll(vertices, -1, 0), strict=True):
        triangle = f(0.5) * cross(a, b)
        area += triangle
        center += triangle * THIRD * (a + b)
    return Polygon(vertices, normals, center * (ONE / area))


def box(half_width: float, half_height: float) -> Polygon:
    """b2PolygonShape::SetAsBox."""
    x, y = f(half_width), f(half_height)
    vertices = np.array([(-x, -y), (x, -y), (x, y), (-x, y)], f)
    return Polygon(vertices, np.array([(0, -1), (1, 0), (0, 1), (-1, 0)], f), np.zeros(2, f))


def mass(shape: Polygon, density: float) -> tuple[Any, Any, np.ndarray]:
    """1 / mass, 1 / moment of inertia about the centre of mass, and this centre."""
    vertices = shape.vertices
    start = np.zeros(2, f)
    for vertex in vertices:
        start += vertex
    start *= ONE / f(len(vertices))
    center, area, inertia = np.zeros(2, f), f(0), f(0)
    for a, b in zip(vertices - start, np.roll(vertices, -1, 0) - start, strict=True):
        d = cross(a, b)
        triangle = f(0.5) * d
        area += triangle
        center += triangle * THIRD * (a + b)
        x, y = a * a + b * a + b * b
        inertia += (f(0.25) * THIRD * d) * (x + y)
    m = f(density) * area
    center *= ONE / area
    whole = center + start
    inertia = f(density) * inertia
    inertia += m * ((whole[0] * whole[0] + whole[1] * whole[1]) - (center[0] * center[0] + center[1] * center[1]))
    local = m * whole * (ONE / m)
    inertia -= m * (local[0] * local[0] + local[1] * local[1])
    return ONE / m, ONE / inertia, local


def fill(record: Any, shape: Polygon) -> None:
    """Give a record of a body or of ground its shape."""
    n = len(shape.vertices)
    record["n"], record["centroid"] = n, shape.centroid
    record["vertices"][:n], record["normals"][:n] = shape.vertices, shape.normals


def body_of(shape: Polygon, density: float, friction: float) -> Any:
    body = np.zeros(1, BODY)
    fill(body[0], shape)
    body[0]["inv_m"], body[0]["inv_i"], body[0]["center"] = mass(shape, density)
    body[0]["friction"], body[0]["awake"] = friction, True
    return body


def edges(points: np.ndarray, friction: float) -> Any:
    """Ground along a line of points."""
    grounds = np.zeros(len(points) - 1, GROUND)
    grounds["vertices"][:, 0], grounds["vertices"][:, 1] = points[:-1], points[1:]
    grounds["n"], grounds["friction"] = 2, friction
    return grounds


def boxes(corners: list[list[tuple[float, float]]], friction: float) -> Any:
    """Ground of polygons."""
    grounds = np.zeros(len(corners), GROUND)
    for ground, points in zip(grounds, corners, strict=True):
        fill(ground, polygon(points))
    grounds["friction"] = friction
    return grounds
