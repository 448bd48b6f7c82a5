"""Constraints: `b2ContactSolver` against static ground, and `b2RevoluteJoint` with motor and limits."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tests.envs.box2d.walker.records import (
    ANGULAR_SLOP,
    AT_LOWER,
    AT_UPPER,
    FACE_A,
    FREE,
    HALF,
    MAX_ANGULAR_CORRECTION,
    MAX_LINEAR_CORRECTION,
    ONE,
    RADIUS,
    SLOP,
    ZERO,
    add,
    clamp,
    cross,
    dot,
    f,
    greatest,
    least,
    neg,
    origin,
    rotate,
    rotation,
    scale,
    set2,
    sub,
    tangent,
    transform,
    turn,
)

CONSTRAINT = np.dtype(
    [
        ("body", np.int32), ("contact", np.int32), ("count", np.int32), ("friction", f), ("normal", f, 2),
        ("r", f, (2, 2)), ("normal_mass", f, 2), ("tangent_mass", f, 2), ("impulse", f, (2, 2)),  # normal, tangent
        ("k", f, 3), ("inverse", f, (2, 2)),
    ],
    align=True,
)  # fmt: skip


@njit
def world_points(contact, body, p, q, points):
    """b2WorldManifold::Initialize: the points, midway between the surfaces. Returns the normal from ground to body."""
    if contact.kind == FACE_A:
        normal = (contact.normal[0], contact.normal[1])
        for j in range(contact.count):
            point = transform(p, q, contact.local[j])
            distance = RADIUS - dot(sub(point, contact.plane), normal)
            on_a = add(point, scale(distance, normal))
            set2(points[j], scale(HALF, add(on_a, sub(point, scale(RADIUS, normal)))))
        return normal
    normal = rotate(q, contact.normal)
    plane = transform(p, q, contact.plane)
    for j in range(contact.count):
        point = (contact.local[j, 0], contact.local[j, 1])
        distance = RADIUS - dot(sub(point, plane), normal)
        on_b = add(point, scale(distance, normal))
        set2(points[j], scale(HALF, add(sub(point, scale(RADIUS, normal)), on_b)))
    return neg(normal)


@njit
def prepare_contact(w, index, constraint, warm, ratio):
    contact = w.contacts[index]
    body = w.bodies[contact.body]
    q = rotation(body.a)
    points = np.empty((2, 2), np.float32)
    normal = world_points(contact, body, origin(body.c, q, body.center), q, points)
    constraint.body, constraint.contact, constraint.count = contact.body, index, contact.count
    constraint.friction = math.sqrt(w.grounds[contact.ground].friction * body.friction)
    set2(constraint.normal, normal)
    for j in range(contact.count):
        r = sub(points[j], body.c)
        set2(constraint.r[j], r)
        along = cross(r, normal)
        k = body.inv_m + body.inv_i * along * along
        constraint.normal_mass[j] = ONE / k if k > ZERO else ZERO
        across = cross(r, tangent(normal))
        k = body.inv_m + body.inv_i * across * across
        constraint.tangent_mass[j] = ONE / k if k > ZERO else ZERO
        constraint.impulse[j, 0] = ratio * contact.impulse[j, 0] if warm else ZERO
        constraint.impulse[j, 1] = ratio * contact.impulse[j, 1] if warm else ZERO
    if contact.count == 2:
        r1, r2 = cross(constraint.r[0], normal), cross(constraint.r[1], normal)
        k11 = body.inv_m + body.inv_i * r1 * r1
        k22 = body.inv_m + body.inv_i * r2 * r2
        k12 = body.inv_m + body.inv_i * r1 * r2
        if k11 * k11 < f(1000) * (k11 * k22 - k12 * k12):
            constraint.k[0], constraint.k[1], constraint.k[2] = k11, k12, k22
            determinant = k11 * k22 - k12 * k12
            if determinant != ZERO:
                determinant = ONE / determinant
            constraint.inverse[0, 0], constraint.inverse[0, 1] = determinant * k22, -determinant * k12
            constraint.inverse[1, 0], constraint.inverse[1, 1] = -determinant * k12, determinant * k11
        else:
            constraint.count = 1


@njit
def push(body, r, impulse):
    body.w = body.w + body.inv_i * cross(r, impulse)
    body.v[0] = body.v[0] + body.inv_m * impulse[0]
    body.v[1] = body.v[1] + body.inv_m * impulse[1]


@njit
def warm_start(w, constraint):
    body, normal = w.bodies[constraint.body], (constraint.normal[0], constraint.normal[1])
    for j in range(constraint.count):
        impulse = add(scale(constraint.impulse[j, 0], normal), scale(constraint.impulse[j, 1], tangent(normal)))
        push(body, constraint.r[j], impulse)


@njit
def velocity_at(body, r):
    return add((body.v[0], body.v[1]), turn(body.w, r))


@njit
def both_points(constraint, b):
    """The normal impulses that leave neither point approaching, by enumeration; whether there are any."""
    k12, inverse = constraint.k[1], constraint.inverse
    x = -(inverse[0, 0] * b[0] + inverse[0, 1] * b[1])
    y = -(inverse[1, 0] * b[0] + inverse[1, 1] * b[1])
    if x >= ZERO and y >= ZERO:
        return True, x, y
    x = -constraint.normal_mass[0] * b[0]
    if x >= ZERO and k12 * x + b[1] >= ZERO:
        return True, x, ZERO
    y = -constraint.normal_mass[1] * b[1]
    if y >= ZERO and k12 * y + b[0] >= ZERO:
        return True, ZERO, y
    return b[0] >= ZERO and b[1] >= ZERO, ZERO, ZERO


@njit
def solve_contact(w, constraint):
    """One velocity iteration: friction of each point, then the normal impulses."""
    body, normal = w.bodies[constraint.body], (constraint.normal[0], constraint.normal[1])
    across = tangent(normal)
    impulse = constraint.impulse
    for j in range(constraint.count):
        r = constraint.r[j]
        change = constraint.tangent_mass[j] * (-dot(velocity_at(body, r), across))
        most = constraint.friction * impulse[j, 0]
        new = clamp(impulse[j, 1] + change, -most, most)
        change = new - impulse[j, 1]
        impulse[j, 1] = new
        push(body, r, scale(change, across))
    if constraint.count == 1:
        change = -constraint.normal_mass[0] * dot(velocity_at(body, constraint.r[0]), normal)
        new = greatest(impulse[0, 0] + change, ZERO)
        change = new - impulse[0, 0]
        impulse[0, 0] = new
        push(body, constraint.r[0], scale(change, normal))
        return
    k11, k12, k22 = constraint.k[0], constraint.k[1], constraint.k[2]
    a1, a2 = impulse[0, 0], impulse[1, 0]
    b1 = dot(velocity_at(body, constraint.r[0]), normal) - (k11 * a1 + k12 * a2)
    b2 = dot(velocity_at(body, constraint.r[1]), normal) - (k12 * a1 + k22 * a2)
    solved, x, y = both_points(constraint, (b1, b2))
    if solved:
        first, second = scale(x - a1, normal), scale(y - a2, normal)
        body.v[0] = body.v[0] + body.inv_m * (first[0] + second[0])
        body.v[1] = body.v[1] + body.inv_m * (first[1] + second[1])
        body.w = body.w + body.inv_i * (cross(constraint.r[0], first) + cross(constraint.r[1], second))
        impulse[0, 0], impulse[1, 0] = x, y


@njit
def correct_contact(w, index, baumgarte):
    """One position iteration. Returns the least separation."""
    contact = w.contacts[index]
    body = w.bodies[contact.body]
    worst = ZERO
    for j in range(contact.count):
        q = rotation(body.a)
        p = origin(body.c, q, body.center)
        if contact.kind == FACE_A:
            normal = (contact.normal[0], contact.normal[1])
            point = transform(p, q, contact.local[j])
            separation = dot(sub(point, contact.plane), normal) - RADIUS - RADIUS
        else:
            normal = rotate(q, contact.normal)
            point = (contact.local[j, 0], contact.local[j, 1])
            separation = dot(sub(point, transform(p, q, contact.plane)), normal) - RADIUS - RADIUS
            normal = neg(normal)
        r = sub(point, body.c)
        worst = least(worst, separation)
        error = clamp(baumgarte * (separation + SLOP), -MAX_LINEAR_CORRECTION, ZERO)
        along = cross(r, normal)
        k = body.inv_m + body.inv_i * along * along
        impulse = scale(-error / k if k > ZERO else ZERO, normal)
        body.c[0] = body.c[0] + body.inv_m * impulse[0]
        body.c[1] = body.c[1] + body.inv_m * impulse[1]
        body.a = body.a + body.inv_i * cross(r, impulse)
    return worst


@njit
def prepare_joint(w, index, ratio):
    """Masses and limit state; then the warm start."""
    joint = w.joints[index]
    a, b = w.bodies[joint.a], w.bodies[joint.b]
    ma, ia, mb, ib = a.inv_m, a.inv_i, b.inv_m, b.inv_i
    ra, rb = rotate(rotation(a.a), joint.anchor_a), rotate(rotation(b.a), joint.anchor_b)
    set2(joint.ra, ra)
    set2(joint.rb, rb)
    k = joint.k
    k[0] = ma + mb + ra[1] * ra[1] * ia + rb[1] * rb[1] * ib
    k[1] = -ra[1] * ra[0] * ia - rb[1] * rb[0] * ib
    k[2] = -ra[1] * ia - rb[1] * ib
    k[3] = ma + mb + ra[0] * ra[0] * ia + rb[0] * rb[0] * ib
    k[4] = ra[0] * ia + rb[0] * ib
    k[5] = ia + ib
    joint.motor_mass = ONE / (ia + ib)
    angle = b.a - a.a - joint.reference
    state = FREE
    if angle <= joint.lower:
        state = AT_LOWER
    elif angle >= joint.upper:
        state = AT_UPPER
    impulse = joint.impulse
    if state == FREE or state != joint.limit:
        impulse[2] = ZERO
    joint.limit = state
    for i in range(3):
        impulse[i] *= ratio
    joint.motor *= ratio
    a.v[0], a.v[1] = a.v[0] - ma * impulse[0], a.v[1] - ma * impulse[1]
    a.w = a.w - ia * (cross(ra, impulse) + joint.motor + impulse[2])
    b.v[0], b.v[1] = b.v[0] + mb * impulse[0], b.v[1] + mb * impulse[1]
    b.w = b.w + ib * (cross(rb, impulse) + joint.motor + impulse[2])


@njit
def solve2(k11, k12, k22, b):
    """b2Mat33::Solve22, and b2Mat22::Solve of a symmetric matrix."""
    determinant = k11 * k22 - k12 * k12
    if determinant != ZERO:
        determinant = ONE / determinant
    return determinant * (k22 * b[0] - k12 * b[1]), determinant * (k11 * b[1] - k12 * b[0])


@njit
def solve3(k, b):
    """b2Mat33::Solve33 of a symmetric matrix."""
    k11, k12, k13, k22, k23, k33 = k[0], k[1], k[2], k[3], k[4], k[5]
    x, y, z = b
    ux, uy, uz = k22 * k33 - k23 * k23, k23 * k13 - k12 * k33, k12 * k23 - k22 * k13  # ey × ez
    determinant = k11 * ux + k12 * uy + k13 * uz
    if determinant != ZERO:
        determinant = ONE / determinant
    first = determinant * (x * ux + y * uy + z * uz)
    px, py, pz = y * k33 - z * k23, z * k13 - x * k33, x * k23 - y * k13  # b × ez
    second = determinant * (k11 * px + k12 * py + k13 * pz)
    px, py, pz = k22 * z - k23 * y, k23 * x - k12 * z, k12 * y - k22 * x  # ey × b
    return first, second, determinant * (k11 * px + k12 * py + k13 * pz)


@njit
def solve_joint(w, index, h):
    """One velocity iteration: the motor, then the anchor, with the limit where it is active."""
    joint = w.joints[index]
    a, b = w.bodies[joint.a], w.bodies[joint.b]
    ma, ia, mb, ib = a.inv_m, a.inv_i, b.inv_m, b.inv_i
    ra, rb, k, impulse = joint.ra, joint.rb, joint.k, joint.impulse
    wa, wb = a.w, b.w
    change = -joint.motor_mass * (wb - wa - joint.speed)
    most = h * joint.max_torque
    new = clamp(joint.motor + change, -most, most)
    change = new - joint.motor
    joint.motor = new
    wa = wa - ia * change
    wb = wb + ib * change
    x = b.v[0] + -wb * rb[1] - a.v[0] - -wa * ra[1]
    y = b.v[1] + wb * rb[0] - a.v[1] - wa * ra[0]
    if joint.limit == FREE:
        p = solve2(k[0], k[1], k[3], (-x, -y))
        twist_a, twist_b = cross(ra, p), cross(rb, p)
    else:
        first, second, third = solve3(k, (x, y, wb - wa))
        p, z = (-first, -second), -third
        new = impulse[2] + z
        if (joint.limit == AT_LOWER and new < ZERO) or (joint.limit == AT_UPPER and new > ZERO):
            p = solve2(k[0], k[1], k[3], (-x + impulse[2] * k[2], -y + impulse[2] * k[4]))
            z = -impulse[2]
            impulse[2] = ZERO
        else:
            impulse[2] += z
        twist_a, twist_b = cross(ra, p) + z, cross(rb, p) + z
    impulse[0] += p[0]
    impulse[1] += p[1]
    a.v[0], a.v[1], a.w = a.v[0] - ma * p[0], a.v[1] - ma * p[1], wa - ia * twist_a
    b.v[0], b.v[1], b.w = b.v[0] + mb * p[0], b.v[1] + mb * p[1], wb + ib * twist_b


@njit
def correct_joint(w, index):
    """One position iteration. Returns whether limit and anchor were within their slops."""
    joint = w.joints[index]
    a, b = w.bodies[joint.a], w.bodies[joint.b]
    ma, ia, mb, ib = a.inv_m, a.inv_i, b.inv_m, b.inv_i
    angle_error = ZERO
    if joint.limit != FREE:
        angle = b.a - a.a - joint.reference
        if joint.limit == AT_LOWER:
            error = angle - joint.lower
            angle_error = -error
            error = clamp(error + ANGULAR_SLOP, -MAX_ANGULAR_CORRECTION, ZERO)
        else:
            error = angle - joint.upper
            angle_error = error
            error = clamp(error - ANGULAR_SLOP, ZERO, MAX_ANGULAR_CORRECTION)
        change = -joint.motor_mass * error
        a.a = a.a - ia * change
        b.a = b.a + ib * change
    ra, rb = rotate(rotation(a.a), joint.anchor_a), rotate(rotation(b.a), joint.anchor_b)
    x, y = b.c[0] + rb[0] - a.c[0] - ra[0], b.c[1] + rb[1] - a.c[1] - ra[1]
    error = math.sqrt(x * x + y * y)
    k11 = ma + mb + ia * ra[1] * ra[1] + ib * rb[1] * rb[1]
    k12 = -ia * ra[0] * ra[1] - ib * rb[0] * rb[1]
    k22 = ma + mb + ia * ra[0] * ra[0] + ib * rb[0] * rb[0]
    p = neg(solve2(k11, k12, k22, (x, y)))
    a.c[0], a.c[1], a.a = a.c[0] - ma * p[0], a.c[1] - ma * p[1], a.a - ia * cross(ra, p)
    b.c[0], b.c[1], b.a = b.c[0] + mb * p[0], b.c[1] + mb * p[1], b.a + ib * cross(rb, p)
    return error <= SLOP and angle_error <= ANGULAR_SLOP
