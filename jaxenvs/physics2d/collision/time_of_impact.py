"""Time at which a moving polygon touches an edge (`b2TimeOfImpact.cpp`): conservative advancement.

The time is not the exact root of the distance but the first iterate that is near enough. Which iterate that is depends
on the path, so this takes the same path as Box2D: GJK, a separating axis, the deepest point at the end of the motion,
and bisection and secant in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d.collision.distance import Simplex, distance, farthest, no_simplex
from jaxenvs.physics2d.constants import (
    EPSILON,
    IMPACT_ITERATIONS,
    PI,
    PUSH_BACKS,
    ROOT_ITERATIONS,
    TARGET_SEPARATION,
    TARGET_TOLERANCE,
)
from jaxenvs.physics2d.geometry import Frame, Number, Vector, frame
from jaxenvs.transformations import varying


class Sweep(NamedTuple):
    """Motion from time 0 to 1: x, y and angle of the center of mass before and after, and the center in the body."""

    before: tuple[Number, Number, Number]
    after: tuple[Number, Number, Number]
    center: jax.Array

    def at(self, time: jax.Array) -> Frame:
        x, y, angle = ((1 - time) * a + time * b for a, b in zip(self.before, self.after, strict=True))
        return frame(x, y, angle, self.center)


class _Axis(NamedTuple):
    """Separating axis, and what it was made of: two vertices, the edge, or a side of the polygon."""

    kind: Number
    x: Number  # in world coordinates, or for a side in the body's frame
    y: Number
    point: Vector  # on the edge or the side


_PushBack = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
_Search = tuple[jax.Array, jax.Array, Simplex, jax.Array, jax.Array]

_VERTICES, _EDGE, _SIDE = range(3)

# The result of a search, or that it continues.
_GOES_ON, _TOUCHES, _NEVER = range(3)

_FAR, _NEAR = TARGET_SEPARATION + TARGET_TOLERANCE, TARGET_SEPARATION - TARGET_TOLERANCE


def time_of_impact(edge: jax.Array, vertices: jax.Array, sweep: Sweep) -> tuple[jax.Array, jax.Array]:
    """Return whether the polygon touches the edge during the motion, and when, from 0 to 1.

    Args:
      edge: (4,), from x, y to x, y, or the corners of a box, (8,).
      vertices: (V, 2).
    """
    turns = 2 * PI * jnp.floor(sweep.before[2] / (2 * PI))
    sweep = sweep._replace(
        before=(*sweep.before[:2], sweep.before[2] - turns), after=(*sweep.after[:2], sweep.after[2] - turns)
    )
    ends = edge[0::2], edge[1::2]
    corners = vertices[:, 0], vertices[:, 1]

    def separation(axis: _Axis, time: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        """Return the distance of vertex a of the edge and b of the polygon, along the axis."""
        at = sweep.at(time)
        nx, ny = _normal(axis, at)
        bx, by = at.place(corners[0][b], corners[1][b])
        px, py = at.place(*axis.point)
        on_side, on_edge = axis.kind == _SIDE, axis.kind == _EDGE
        x = jnp.where(on_side, ends[0][a] - px, bx - jnp.where(on_edge, axis.point[0], ends[0][a]))
        y = jnp.where(on_side, ends[1][a] - py, by - jnp.where(on_edge, axis.point[1], ends[1][a]))
        return x * nx + y * ny

    def deepest(axis: _Axis, time: jax.Array) -> Vector:
        """Return the vertices of edge and polygon that are nearest along the axis."""
        at = sweep.at(time)
        nx, ny = _normal(axis, at)
        sign = jnp.where(axis.kind == _SIDE, -1, 1)
        return farthest(ends, sign * nx, sign * ny), farthest(corners, *at.turn_back(-nx, -ny))

    def advance(carry: _Search) -> _Search:
        rounds, time, simplex, _, _ = carry
        at = sweep.at(time)
        gap, simplex = distance(simplex, ends, at.place(*corners))
        axis = _axis(simplex, ends, corners, at)
        is_behind = (axis.kind != _VERTICES) & (separation(axis, time, simplex.a[0], simplex.b[0]) < 0)
        axis = axis._replace(x=jnp.where(is_behind, -axis.x, axis.x), y=jnp.where(is_behind, -axis.y, axis.y))
        known = jnp.where(gap <= 0, _NEVER, jnp.where(gap < _FAR, _TOUCHES, _GOES_ON)).astype(jnp.int32)

        def push_back(carry: _PushBack) -> _PushBack:
            pushes, time, late, _, _ = carry
            a, b = deepest(axis, late)
            at_end, at_start = separation(axis, late, a, b), separation(axis, time, a, b)
            is_apart, is_reached = at_end > _FAR, at_end > _NEAR
            is_lost, is_touching = at_start < _NEAR, at_start <= _FAR
            ends_here = is_apart | is_reached | is_lost | is_touching
            how = jnp.where(
                is_apart, _NEVER, jnp.where(is_reached, _GOES_ON, jnp.where(is_lost, _NEVER, _TOUCHES))
            ).astype(jnp.int32)

            middle, is_found = _root(lambda time: separation(axis, time, a, b), time, late, at_start, at_end, ends_here)
            return (
                pushes + 1,
                jnp.where(~is_apart & is_reached, late, time),
                jnp.where(ends_here | ~is_found, late, middle),
                jnp.where(ends_here, how, _GOES_ON).astype(jnp.int32),
                ends_here,
            )

        start = varying((jnp.int32(0), time, jnp.float32(1), known, known != _GOES_ON), carry, axis, edge, sweep)
        _, time, _, how, _ = jax.lax.while_loop(lambda carry: (carry[0] < PUSH_BACKS) & ~carry[4], push_back, start)
        return rounds + 1, time, simplex, how, how != _GOES_ON

    start = jnp.int32(0), jnp.float32(0), no_simplex(), jnp.int32(_GOES_ON), jnp.bool_(False)
    start = varying(start, edge, vertices, sweep)
    _, time, _, how, _ = jax.lax.while_loop(lambda carry: (carry[0] < IMPACT_ITERATIONS) & ~carry[4], advance, start)
    return how == _TOUCHES, time


def _root(
    separation: Callable[..., Number], early: Number, late: Number, at_early: Number, at_late: Number, is_found: Number
) -> tuple[jax.Array, jax.Array]:
    """Find the time of a touch between two times, by bisection and secant in turn; also return whether it was found."""

    def halve(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        number, low, high, at_low, at_high, _, _ = carry
        rise = at_high - at_low
        secant = low + (TARGET_SEPARATION - at_low) * (high - low) / jnp.where(rise != 0, rise, 1)
        middle = jnp.where(number % 2 == 1, secant, np.float32(0.5) * (low + high))
        here = separation(middle)
        is_above = here > TARGET_SEPARATION
        return (
            number + 1,
            jnp.where(is_above, middle, low),
            jnp.where(is_above, high, middle),
            jnp.where(is_above, here, at_low),
            jnp.where(is_above, at_high, here),
            middle,
            jnp.abs(here - TARGET_SEPARATION) < TARGET_TOLERANCE,
        )

    start: tuple[jax.Array, ...] = jnp.int32(0), early, late, at_early, at_late, late, is_found
    start = varying(start, start)
    *_, middle, is_found = jax.lax.while_loop(lambda carry: (carry[0] < ROOT_ITERATIONS) & ~carry[6], halve, start)
    return middle, is_found


def _normal(axis: _Axis, at: Frame) -> Vector:
    """Return the axis in world coordinates."""
    x, y = at.turn(axis.x, axis.y)
    on_side = axis.kind == _SIDE
    return jnp.where(on_side, x, axis.x), jnp.where(on_side, y, axis.y)


def _axis(simplex: Simplex, ends: Vector, corners: Vector, at: Frame) -> _Axis:
    """Return the axis along which the distance was measured."""
    (ax, ay), (ux, uy) = ((ends[0][i], ends[1][i]) for i in (simplex.a[0], simplex.a[1]))
    (bx, by), (vx, vy) = ((corners[0][i], corners[1][i]) for i in (simplex.b[0], simplex.b[1]))
    kind = jnp.where(simplex.count == 1, _VERTICES, jnp.where(simplex.a[0] == simplex.a[1], _SIDE, _EDGE))
    of_vertices, on_side = kind == _VERTICES, kind == _SIDE
    px, py = at.place(bx, by)
    x = jnp.where(of_vertices, px - ax, jnp.where(on_side, vy - by, uy - ay))
    y = jnp.where(of_vertices, py - ay, jnp.where(on_side, bx - vx, ax - ux))
    length = jnp.sqrt(x * x + y * y)
    scale = jnp.where(length < EPSILON, 1, 1 / jnp.where(length < EPSILON, 1, length))
    half = np.float32(0.5)
    point = half * jnp.where(on_side, bx + vx, ax + ux), half * jnp.where(on_side, by + vy, ay + uy)
    return _Axis(kind, x * scale, y * scale, point)
