"""Contacts in the solver: non-penetration and friction of up to two points each (`b2ContactSolver.cpp`).

The other body of every contact is static, so that its mass does not appear.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d.collision.broad_phase import number_of
from jaxenvs.physics2d.collision.narrow_phase import Manifold
from jaxenvs.physics2d.constants import LINEAR_SLOP, MAX_CONDITION, MAX_LINEAR_CORRECTION, RADIUS
from jaxenvs.physics2d.geometry import Frame, Number, Vector, clamp, frame, row, with_row
from jaxenvs.physics2d.kernels import once
from jaxenvs.physics2d.world import Pairs, World
from jaxenvs.transformations import varying

Velocity: TypeAlias = tuple[Number, Number, Number]  # of x, y and angle; or these themselves


class Contact(NamedTuple):
    """Quantities of a contact that stay constant while velocities are solved. Pairs are for the two points.

    A point that does not exist has no masses, so that it causes no impulse.
    """

    body: Number  # int32
    inverse_mass: Number
    inverse_inertia: Number
    normal: Vector
    friction: Number
    along: Vector  # r x normal: what 1 rad/s adds to the velocity along the normal
    across: Vector  # r x tangent
    normal_mass: Vector
    tangent_mass: Vector
    is_block: Number  # bool, both points are solved together
    matrix: tuple[Number, Number, Number]  # k11, k12, k22 of the block
    inverse: tuple[Number, Number, Number]


class Impulses(NamedTuple):
    """Impulses at the two points of a contact [N s]."""

    normal: Vector
    tangent: Vector


def _world_of(manifold: Manifold, frame: Frame) -> tuple[Vector, Vector, Sequence[Vector]]:
    """Return normal and plane of the reference, and the points, in world coordinates."""
    on, (nx, ny), (px, py) = manifold.on_polygon, manifold.normal, manifold.plane
    tx, ty = frame.turn(nx, ny)
    qx, qy = frame.place(px, py)
    points = []
    for x, y in manifold.point:
        wx, wy = frame.place(x, y)
        points.append((jnp.where(on, x, wx), jnp.where(on, y, wy)))
    return (jnp.where(on, tx, nx), jnp.where(on, ty, ny)), (jnp.where(on, qx, px), jnp.where(on, qy, py)), points


def prepare(world: World, manifold: Manifold, body: Number, edge: Number, position: Number, angle: Number) -> Contact:
    """Return the constraint of a pair that touches.

    Args:
      body, edge: their numbers.
      position, angle: (2,) and (), of the body.
    """
    inverse_mass, inverse_inertia = row(world.inverse_mass, body), row(world.inverse_inertia, body)
    x, y = position[0], position[1]
    (nx, ny), (px, py), points = _world_of(manifold, frame(x, y, angle, row(world.center, body)))
    sign = jnp.where(manifold.on_polygon, np.float32(-1), np.float32(1))  # to the body
    along, across = [], []
    for qx, qy in points:
        # Contact is midway between the two surfaces: the skin around the point, and the skin of the reference.
        depth = RADIUS - ((qx - px) * nx + (qy - py) * ny)
        half = np.float32(0.5)
        rx = half * ((qx + depth * nx) + (qx - RADIUS * nx)) - x
        ry = half * ((qy + depth * ny) + (qy - RADIUS * ny)) - y
        along.append(sign * (rx * ny - ry * nx))
        across.append(sign * (-rx * nx - ry * ny))  # the tangent is (ny, -nx)
    k11, k22, k12 = (inverse_mass + inverse_inertia * along[i] * along[j] for i, j in ((0, 0), (1, 1), (0, 1)))
    determinant = k11 * k22 - k12 * k12
    is_block = (manifold.count == 2) & (k11 * k11 < MAX_CONDITION * determinant)
    inverse = 1 / jnp.where(is_block, determinant, 1)
    tangent_mass = [1 / (inverse_mass + inverse_inertia * arm * arm) for arm in across]
    return Contact(
        body=body,
        inverse_mass=inverse_mass,
        inverse_inertia=inverse_inertia,
        normal=(sign * nx, sign * ny),
        friction=row(row(world.friction, body), edge),
        along=(along[0], along[1]),
        across=(across[0], across[1]),
        normal_mass=(1 / k11, jnp.where(is_block, 1 / k22, 0)),
        tangent_mass=(tangent_mass[0], jnp.where(is_block, tangent_mass[1], 0)),
        is_block=is_block,
        matrix=(k11, k12, k22),
        inverse=(inverse * k22, -inverse * k12, inverse * k11),
    )


def push(contact: Contact, velocity: Velocity, impulses: Impulses) -> Velocity:
    """Return the velocity of the body after impulses at the points."""
    (nx, ny), (n0, n1), (t0, t1) = contact.normal, impulses.normal, impulses.tangent
    normal, tangent = n0 + n1, t0 + t1
    turn = contact.along[0] * n0 + contact.along[1] * n1 + contact.across[0] * t0 + contact.across[1] * t1
    return (
        velocity[0] + contact.inverse_mass * (normal * nx + tangent * ny),
        velocity[1] + contact.inverse_mass * (normal * ny - tangent * nx),
        velocity[2] + contact.inverse_inertia * turn,
    )


def solve_velocity(contact: Contact, velocity: Velocity, impulses: Impulses) -> tuple[Velocity, Impulses]:
    """Run one iteration: friction of each point, then the normals, alone or as a block."""
    velocity, t0 = once(partial(_rub, 0))(contact, velocity, impulses)
    velocity, t1 = once(partial(_rub, 1))(contact, velocity, impulses)
    velocity, normal = once(_press)(contact, velocity, impulses.normal)
    return velocity, Impulses(normal, (t0, t1))


def _rub(point: int, contact: Contact, velocity: Velocity, impulses: Impulses) -> tuple[Velocity, Number]:
    """Apply friction at a point, bounded by the impulse along the normal."""
    (x, y, turn), (nx, ny), arm = velocity, contact.normal, contact.across[point]
    limit, old = contact.friction * impulses.normal[point], impulses.tangent[point]
    new = clamp(old - contact.tangent_mass[point] * (x * ny - y * nx + turn * arm), -limit, limit)
    push = contact.inverse_mass * (new - old)
    return (x + push * ny, y - push * nx, turn + contact.inverse_inertia * ((new - old) * arm)), new


def _press(contact: Contact, velocity: Velocity, impulses: Vector) -> tuple[Velocity, Vector]:
    """Stop the approach along the normal: at the first point alone, or at both, by trying which of them push."""
    (x, y, turn), (nx, ny), (arm0, arm1), (old0, old1) = velocity, contact.normal, contact.along, impulses
    approach0, approach1 = x * nx + y * ny + turn * arm0, x * nx + y * ny + turn * arm1
    alone = jnp.maximum(old0 - contact.normal_mass[0] * approach0, 0)

    k11, k12, k22 = contact.matrix
    i11, i12, i22 = contact.inverse
    b0, b1 = approach0 - (k11 * old0 + k12 * old1), approach1 - (k12 * old0 + k22 * old1)
    both0, both1 = -(i11 * b0 + i12 * b1), -(i12 * b0 + i22 * b1)
    first, second = -contact.normal_mass[0] * b0, -contact.normal_mass[1] * b1
    cases = (
        ((both0 >= 0) & (both1 >= 0), both0, both1),
        ((first >= 0) & (k12 * first + b1 >= 0), first, 0),
        ((second >= 0) & (k12 * second + b0 >= 0), 0, second),
        ((b0 >= 0) & (b1 >= 0), 0, 0),
    )
    new0, new1 = old0, old1  # if no case holds, nothing changes
    for holds, case0, case1 in reversed(cases):
        new0, new1 = jnp.where(holds, case0, new0), jnp.where(holds, case1, new1)
    new0, new1 = jnp.where(contact.is_block, new0, alone), jnp.where(contact.is_block, new1, old1)
    change0, change1 = new0 - old0, new1 - old1
    push = contact.inverse_mass * (change0 + change1)
    turn = turn + contact.inverse_inertia * (change0 * arm0 + change1 * arm1)
    return (x + push * nx, y + push * ny, turn), (new0, new1)


def solve_position(
    world: World, manifold: Manifold, body: jax.Array, position: Velocity, share: np.float32
) -> tuple[Velocity, Number]:
    """Run one iteration, point by point. Return x, y and angle of the body, and the least separation [m].

    Args:
      position: x, y and angle.
      share: of the error that is corrected.
    """
    inverse_mass, inverse_inertia = row(world.inverse_mass, body), row(world.inverse_inertia, body)
    center = row(world.center, body)

    def correct(point: int, x: Number, y: Number, angle: Number) -> tuple[Velocity, Number]:
        normal, (px, py), points = _world_of(manifold, frame(x, y, angle, center))
        (nx, ny), (qx, qy) = normal, points[point]
        separation = (qx - px) * nx + (qy - py) * ny - 2 * RADIUS
        sign = jnp.where(manifold.on_polygon, np.float32(-1), np.float32(1))
        nx, ny = sign * nx, sign * ny
        arm = (qx - x) * ny - (qy - y) * nx
        error = clamp(share * (separation + LINEAR_SLOP), -MAX_LINEAR_CORRECTION, 0)
        is_there = point < manifold.count
        push = jnp.where(is_there, -error / (inverse_mass + inverse_inertia * arm * arm), 0)
        moved = x + inverse_mass * push * nx, y + inverse_mass * push * ny, angle + inverse_inertia * (push * arm)
        return moved, jnp.where(is_there, separation, 0)

    position, least0 = once(partial(correct, 0))(*position)
    position, least1 = once(partial(correct, 1))(*position)
    return position, jnp.minimum(jnp.minimum(least0, least1), 0)


# --- All contacts of a World, one after the other ---------------------------------------------------------------------


def touching(world: World, pairs: Pairs) -> tuple[jax.Array, jax.Array]:
    """Return the pairs that touch, in the order of the island: their numbers int32 (P,), and how many there are."""
    number = number_of(pairs)
    order = np.array(world.body_order, np.int32)

    def visit(step: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        found, many = carry
        pair, body = step % number, row(order, step // number)
        is_one = (row(pairs.count, pair) > 0) & (row(pairs.key, pair) % len(world.bodies) == body)
        return jnp.where(is_one, with_row(found, many, pair), found), many + is_one.astype(jnp.int32)

    start = varying((jnp.zeros(world.pairs, jnp.int32), jnp.int32(0)), pairs)
    result: tuple[jax.Array, jax.Array] = jax.lax.fori_loop(jnp.int32(0), number * len(order), visit, start)
    return result


def prepare_all(
    world: World, pairs: Pairs, manifolds: Manifold, order: jax.Array, number: jax.Array, positions: jax.Array
) -> tuple[Contact, Impulses]:
    """Return the constraints of the first `number` pairs in `order`, and their impulses: tables of P rows."""

    def of_slot(slot: jax.Array) -> tuple[Contact, Impulses]:
        pair = row(order, slot)
        key, impulse = row(pairs.key, pair), row(pairs.impulse, pair)
        body = key % len(world.bodies)
        place = row(positions, body)
        contact = prepare(world, row(manifolds, pair), body, key // len(world.bodies), place[:2], place[2])
        second = jnp.where(contact.is_block, impulse[1], 0)  # the table keeps the impulse of a point that is not solved
        return contact, Impulses((impulse[0, 0], second[0]), (impulse[0, 1], second[1]))

    shapes = jax.eval_shape(of_slot, jnp.int32(0))
    table = jax.tree.map(lambda leaf: jnp.zeros((world.pairs, *leaf.shape), leaf.dtype), shapes)

    def add(slot: jax.Array, table: tuple[Contact, Impulses]) -> tuple[Contact, Impulses]:
        return with_row(table, slot, of_slot(slot))

    start = varying(table, pairs, manifolds, order, number, positions)
    result: tuple[Contact, Impulses] = jax.lax.fori_loop(0, number, add, start)
    return result


def warm_start_all(prepared: Contact, number: jax.Array, velocities: jax.Array, pushes: Impulses) -> jax.Array:
    """Return the velocities (B, 3) after the impulses with which the first `number` contacts begin."""

    def start(slot: jax.Array, velocities: jax.Array) -> jax.Array:
        contact = row(prepared, slot)
        moved = push(contact, _row3(velocities, contact.body), row(pushes, slot))
        return with_row(velocities, contact.body, jnp.stack(moved))

    before = varying(velocities, velocities, prepared, number, pushes)
    started: jax.Array = jax.lax.fori_loop(0, number, start, before)
    return started


def solve_all_velocities(
    prepared: Contact, number: jax.Array, velocities: jax.Array, pushes: Impulses
) -> tuple[jax.Array, Impulses]:
    """Run one iteration of the first `number` contacts, one after the other."""

    def solve(slot: jax.Array, carry: tuple[jax.Array, Impulses]) -> tuple[jax.Array, Impulses]:
        velocities, pushes = carry
        contact = row(prepared, slot)
        moved, pushed = solve_velocity(contact, _row3(velocities, contact.body), row(pushes, slot))
        return with_row(velocities, contact.body, jnp.stack(moved)), with_row(pushes, slot, pushed)

    start = varying((velocities, pushes), velocities, prepared, number, pushes)
    result: tuple[jax.Array, Impulses] = jax.lax.fori_loop(0, number, solve, start)
    return result


def solve_all_positions(
    world: World,
    pairs: Pairs,
    manifolds: Manifold,
    order: jax.Array,
    number: jax.Array,
    positions: jax.Array,
    share: np.float32,
) -> tuple[jax.Array, jax.Array]:
    """Run one iteration of the pairs `order`, and return the positions and the least separation [m]."""

    def solve(slot: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        positions, least = carry
        pair = row(order, slot)
        body = row(pairs.key, pair) % len(world.bodies)
        moved, separation = solve_position(world, row(manifolds, pair), body, _row3(positions, body), share)
        return with_row(positions, body, jnp.stack(moved)), jnp.minimum(least, separation)

    start = varying((positions, jnp.float32(0)), positions, pairs, manifolds, order, number)
    result: tuple[jax.Array, jax.Array] = jax.lax.fori_loop(0, number, solve, start)
    return result


def _row3(table: jax.Array, number: jax.Array) -> Velocity:
    values = row(table, number)
    return values[0], values[1], values[2]
