"""Revolute joints with a motor and limits (`b2RevoluteJoint.cpp`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d.constants import ANGULAR_SLOP, LINEAR_SLOP, MAX_ANGULAR_CORRECTION
from jaxenvs.physics2d.geometry import Number, Vector, clamp, rows, sine_and_cosine
from jaxenvs.physics2d.kernels import once
from jaxenvs.physics2d.world import World, WorldState

Velocity: TypeAlias = tuple[Number, Number, Number]  # of x, y and angle; or these themselves
Impulse: TypeAlias = tuple[Number, Number, Number, Number]  # x, y, of the limit, of the motor
Velocities: TypeAlias = Sequence[Velocity]
Impulses: TypeAlias = Sequence[Impulse]
Rows: TypeAlias = Sequence[Number]

AT_LOWER, AT_UPPER = np.int32(1), np.int32(2)


class Constants(NamedTuple):
    """Constants of a World's joint, in float32. Arms are from the centers of mass to the joint."""

    body_a: int
    body_b: int
    arm_a: tuple[np.float32, np.float32]
    arm_b: tuple[np.float32, np.float32]
    mass_a: np.float32  # inverse masses and inertias
    mass_b: np.float32
    inertia_a: np.float32
    inertia_b: np.float32
    lower: np.float32
    upper: np.float32
    reference: np.float32


def constants(world: World, number: int) -> Constants:
    joint = world.joints[number]
    a, b = joint.body_a, joint.body_b
    arm_a = np.array(joint.anchor_a, np.float32) - world.center[a]
    arm_b = np.array(joint.anchor_b, np.float32) - world.center[b]
    return Constants(
        a,
        b,
        (arm_a[0], arm_a[1]),
        (arm_b[0], arm_b[1]),
        *(world.inverse_mass[a], world.inverse_mass[b], world.inverse_inertia[a], world.inverse_inertia[b]),
        *map(np.float32, (joint.lower, joint.upper, joint.reference)),
    )


class Joint(NamedTuple):
    """Quantities of a joint that stay constant while velocities are solved."""

    arm_a: Vector  # in world coordinates
    arm_b: Vector
    side: Number  # 1 at the lower limit, -1 at the upper, else 0
    barrier: Number  # lower bound of the limit's impulse times `side`: 0; infinite within the limits
    coupling: Vector  # a13, a23: how the limit's impulse moves the point
    inverse: tuple[Number, ...]  # of point and limit: 11, 12, 13, 22, 23, 33
    inverse_of_point: tuple[Number, Number, Number]  # of the point alone: 11, 12, 22


def _arms(fixed: Constants, angle_a: Number, angle_b: Number) -> tuple[Vector, Vector]:
    arms = []
    for angle, (x, y) in ((angle_a, fixed.arm_a), (angle_b, fixed.arm_b)):
        sine, cosine = sine_and_cosine(angle)
        arms.append((cosine * x - sine * y, sine * x + cosine * y))
    return arms[0], arms[1]


def _matrix_of_point(fixed: Constants, arm_a: Vector, arm_b: Vector) -> tuple[Number, Number, Number]:
    mass = fixed.mass_a + fixed.mass_b
    return (
        mass + fixed.inertia_a * arm_a[1] * arm_a[1] + fixed.inertia_b * arm_b[1] * arm_b[1],
        -fixed.inertia_a * arm_a[0] * arm_a[1] - fixed.inertia_b * arm_b[0] * arm_b[1],
        mass + fixed.inertia_a * arm_a[0] * arm_a[0] + fixed.inertia_b * arm_b[0] * arm_b[0],
    )


def prepare(
    fixed: Constants, angle_a: Number, angle_b: Number, impulse: Impulse, limit: Number
) -> tuple[Joint, Impulse, Number]:
    """Return the constraint, what is left of the last step's impulse, and the limit at which the joint is.

    Args:
      limit: at which limit it was.
    """
    arm_a, arm_b = _arms(fixed, angle_a, angle_b)
    a11, a12, a22 = _matrix_of_point(fixed, arm_a, arm_b)
    a13 = -arm_a[1] * fixed.inertia_a - arm_b[1] * fixed.inertia_b
    a23 = arm_a[0] * fixed.inertia_a + arm_b[0] * fixed.inertia_b
    a33 = fixed.inertia_a + fixed.inertia_b
    u1, u2, u3 = a22 * a33 - a23 * a23, a23 * a13 - a12 * a33, a12 * a23 - a22 * a13
    scale = 1 / (a11 * u1 + a12 * u2 + a13 * u3)
    inverse = (u1, u2, u3, a11 * a33 - a13 * a13, a12 * a13 - a11 * a23, a11 * a22 - a12 * a12)
    determinant = 1 / (a11 * a22 - a12 * a12)

    angle = angle_b - angle_a - fixed.reference
    at_lower, at_upper = angle <= fixed.lower, angle >= fixed.upper
    now = jnp.where(at_lower, AT_LOWER, jnp.where(at_upper, AT_UPPER, np.int32(0)))
    side = jnp.where(at_lower, np.float32(1), jnp.where(at_upper, np.float32(-1), np.float32(0)))
    x, y, of_limit, motor = impulse
    of_limit = jnp.where((now == limit) & (now != 0), of_limit, 0)
    joint = Joint(
        arm_a=arm_a,
        arm_b=arm_b,
        side=side,
        barrier=jnp.where(side == 0, np.float32(np.inf), np.float32(0)),
        coupling=(a13, a23),
        inverse=tuple(scale * each for each in inverse),
        inverse_of_point=(determinant * a22, -determinant * a12, determinant * a11),
    )
    return joint, (x, y, of_limit, motor), now


def push(
    fixed: Constants, joint: Joint, a: Velocity, b: Velocity, x: Number, y: Number, turn: Number
) -> tuple[Velocity, Velocity]:
    """Return the velocities of both bodies after an impulse at the joint and an angular impulse."""
    on_a = joint.arm_a[0] * y - joint.arm_a[1] * x + turn
    on_b = joint.arm_b[0] * y - joint.arm_b[1] * x + turn
    return (
        (a[0] - fixed.mass_a * x, a[1] - fixed.mass_a * y, a[2] - fixed.inertia_a * on_a),
        (b[0] + fixed.mass_b * x, b[1] + fixed.mass_b * y, b[2] + fixed.inertia_b * on_b),
    )


def solve_velocity(
    fixed: Constants, joint: Joint, a: Velocity, b: Velocity, impulse: Impulse, speed: Number, most: Number
) -> tuple[Velocity, Velocity, Impulse]:
    """Run one iteration: the motor, then the point, together with the limit if the joint is at one that holds.

    Args:
      speed: of the motor [rad/s].
      most: of the motor's impulse [N m s].
    """
    inertia_a, inertia_b = fixed.inertia_a, fixed.inertia_b

    def turn_motor(
        joint: Joint, a: Velocity, b: Velocity, motor: Number, speed: Number, most: Number
    ) -> tuple[Number, Number, Number, Number, Number, Number]:
        new = clamp(motor - np.float32(1) / (inertia_a + inertia_b) * (b[2] - a[2] - speed), -most, most)
        turn_a, turn_b = a[2] - inertia_a * (new - motor), b[2] + inertia_b * (new - motor)
        error_x = b[0] - turn_b * joint.arm_b[1] - a[0] + turn_a * joint.arm_a[1]
        error_y = b[1] + turn_b * joint.arm_b[0] - a[1] - turn_a * joint.arm_a[0]
        return turn_a, turn_b, new, error_x, error_y, turn_b - turn_a

    def find_impulse(
        joint: Joint, x: Number, y: Number, turn: Number, of_limit: Number
    ) -> tuple[Number, Number, Number]:
        i11, i12, i13, i22, i23, i33 = joint.inverse
        p11, p12, p22 = joint.inverse_of_point
        limit = -(i13 * x + i23 * y + i33 * turn)
        holds = joint.side * (of_limit + limit) >= joint.barrier
        # A limit that would pull is released.
        free_x, free_y = of_limit * joint.coupling[0] - x, of_limit * joint.coupling[1] - y
        return (
            jnp.where(holds, -(i11 * x + i12 * y + i13 * turn), p11 * free_x + p12 * free_y),
            jnp.where(holds, -(i12 * x + i22 * y + i23 * turn), p12 * free_x + p22 * free_y),
            jnp.where(holds, limit, -of_limit),
        )

    def apply(
        joint: Joint, a: Velocity, b: Velocity, impulse: Impulse, x: Number, y: Number, limit: Number
    ) -> tuple[Velocity, Velocity, Vector, Number]:
        a, b = push(fixed, joint, a, b, x, y, limit)
        return a, b, (impulse[0] + x, impulse[1] + y), impulse[2] + limit

    turn_a, turn_b, motor, *error = once(turn_motor)(joint, a, b, impulse[3], speed, most)
    change = once(find_impulse)(joint, error[0], error[1], error[2], impulse[2])
    a, b, point, limit = once(apply)(joint, (*a[:2], turn_a), (*b[:2], turn_b), impulse, *change)
    return a, b, (*point, limit, motor)


def solve_position(fixed: Constants, limit: Number, a: Velocity, b: Velocity) -> tuple[Velocity, Velocity, Any]:
    """Run one iteration. Return x, y and angle of both bodies, and whether the errors before it were small."""
    inertia_a, inertia_b = fixed.inertia_a, fixed.inertia_b
    angle = b[2] - a[2] - fixed.reference
    below, above = angle - fixed.lower, angle - fixed.upper
    most = MAX_ANGULAR_CORRECTION
    at_lower, at_upper = limit == AT_LOWER, limit == AT_UPPER
    error = jnp.where(at_lower, -below, jnp.where(at_upper, above, 0))
    correction = jnp.where(
        at_lower,
        clamp(below + ANGULAR_SLOP, -most, 0),
        jnp.where(at_upper, clamp(above - ANGULAR_SLOP, 0, most), 0),
    )
    turn = -(np.float32(1) / (inertia_a + inertia_b)) * correction
    angle_a, angle_b = a[2] - inertia_a * turn, b[2] + inertia_b * turn

    arm_a, arm_b = _arms(fixed, angle_a, angle_b)
    error_x, error_y = b[0] + arm_b[0] - a[0] - arm_a[0], b[1] + arm_b[1] - a[1] - arm_a[1]
    k11, k12, k22 = _matrix_of_point(fixed, arm_a, arm_b)
    scale = 1 / (k11 * k22 - k12 * k12)
    x, y = -scale * (k22 * error_x - k12 * error_y), -scale * (k11 * error_y - k12 * error_x)
    is_small = (jnp.sqrt(error_x * error_x + error_y * error_y) <= LINEAR_SLOP) & (error <= ANGULAR_SLOP)
    moved_a = (
        a[0] - fixed.mass_a * x,
        a[1] - fixed.mass_a * y,
        angle_a - inertia_a * (arm_a[0] * y - arm_a[1] * x),
    )
    moved_b = (
        b[0] + fixed.mass_b * x,
        b[1] + fixed.mass_b * y,
        angle_b + inertia_b * (arm_b[0] * y - arm_b[1] * x),
    )
    return moved_a, moved_b, is_small


# --- All joints of a World, one after the other -----------------------------------------------------------------------

_Fixed: TypeAlias = Sequence[Constants]
_Joints: TypeAlias = Sequence[Joint]


def prepare_all(fixed: _Fixed, state: WorldState) -> tuple[_Joints, Impulses, Rows]:
    """Return the constraints, the remaining impulses, and the limits at which joints are, from constants `fixed`."""
    angles = rows(state.angle)
    impulses, limits = rows(state.joint_impulse), rows(state.joint_limit)
    found = [
        prepare(each, angles[each.body_a], angles[each.body_b], impulse, limit)
        for each, impulse, limit in zip(fixed, impulses, limits, strict=True)
    ]
    prepared, left, now = zip(*found, strict=True)
    return prepared, left, now


def warm_start_all(
    world: World, fixed: _Fixed, prepared: _Joints, velocities: Velocities, impulses: Impulses
) -> Velocities:
    """Return the velocities of all bodies after the impulses with which the joints begin."""
    velocities = list(velocities)
    for j in world.joint_order:
        a, b, (x, y, limit, motor) = fixed[j].body_a, fixed[j].body_b, impulses[j]
        pushed = push(fixed[j], prepared[j], velocities[a], velocities[b], x, y, motor + limit)
        velocities[a], velocities[b] = pushed
    return tuple(velocities)


def solve_all_velocities(
    world: World, fixed: _Fixed, prepared: _Joints, velocities: Velocities, impulses: Impulses, speeds: Rows, most: Rows
) -> tuple[Velocities, Impulses]:
    """Run one iteration, and return velocities and impulses."""
    velocities, impulses = list(velocities), list(impulses)
    for j in world.joint_order:
        a, b = fixed[j].body_a, fixed[j].body_b
        velocities[a], velocities[b], impulses[j] = solve_velocity(
            fixed[j], prepared[j], velocities[a], velocities[b], impulses[j], speeds[j], most[j]
        )
    return tuple(velocities), tuple(impulses)


def solve_all_positions(world: World, fixed: _Fixed, limits: Rows, positions: Velocities) -> tuple[Velocities, Any]:
    """Run one iteration; return x, y and angle of all bodies, and whether all errors before it were small."""
    positions, is_solved = list(positions), np.True_
    for j in world.joint_order:
        a, b = fixed[j].body_a, fixed[j].body_b
        positions[a], positions[b], is_small = solve_position(fixed[j], limits[j], positions[a], positions[b])
        is_solved = is_solved & is_small
    return tuple(positions), is_solved
