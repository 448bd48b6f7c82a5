"""Forces, velocities and positions of one step: all bodies are one island (`b2Island.cpp`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d import contacts, joints
from jaxenvs.physics2d.broad_phase import number_of
from jaxenvs.physics2d.geometry import row, with_row
from jaxenvs.physics2d.kernels import in_blocks
from jaxenvs.physics2d.narrow_phase import Manifold
from jaxenvs.physics2d.settings import (
    BAUMGARTE,
    LEAST_SEPARATION,
    MAX_ROTATION,
    MAX_TRANSLATION,
    POSITION_ITERATIONS,
    SLEEP_AFTER,
    SLEEP_ANGULAR_VELOCITY,
    SLEEP_VELOCITY,
    TIMESTEP,
    VELOCITY_ITERATIONS,
)
from jaxenvs.physics2d.world import Pairs, World, WorldState


class Motors(NamedTuple):
    """Of all joints, (J,): the speeds that are wanted [rad/s], and the greatest torques [N m]."""

    speed: Any
    max_torque: Any


class Solved(NamedTuple):
    """What the solver makes of a state.

    Attributes:
      position, velocity: (B, 3), of x, y and angle.
      impulse, limit: of the joints, as in WorldState.
      is_solved: bool, whether the errors of positions became small.
    """

    position: jax.Array
    velocity: jax.Array
    impulse: jax.Array
    limit: jax.Array
    is_solved: jax.Array


def positions_of(state: WorldState) -> jax.Array:
    """(B, 3), of x, y and angle."""
    return jnp.concatenate([state.position, state.angle[:, None]], axis=1)


def velocities_of(state: WorldState) -> jax.Array:
    """(B, 3), of x, y and angle."""
    return jnp.concatenate([state.velocity, state.angular_velocity[:, None]], axis=1)


def accelerate(world: World, state: WorldState, gravity: Any, force: Any, torque: Any) -> WorldState:
    """The velocities after a step's forces (B, 2) [N] and torques (B,) [N m] and gravity [m/s²]."""
    pull = jnp.stack([jnp.zeros((), jnp.float32), jnp.asarray(gravity, jnp.float32)])
    return state.replace(
        velocity=state.velocity + TIMESTEP * (pull + world.inverse_mass[:, None] * force),
        angular_velocity=state.angular_velocity + TIMESTEP * world.inverse_inertia * torque,
    )


def integrate(position: Any, velocity: Any, duration: Any) -> tuple[Any, Any]:
    """x, y and angle of a body after some time, and the velocities, held to what a step may move and turn."""
    (x, y, angle), (dx, dy, turn) = position, velocity
    squared = (duration * dx) ** 2 + (duration * dy) ** 2
    is_fast = squared > MAX_TRANSLATION * MAX_TRANSLATION
    scale = jnp.where(is_fast, MAX_TRANSLATION / jnp.sqrt(jnp.where(is_fast, squared, 1)), 1)
    dx, dy = dx * scale, dy * scale
    rotation = jnp.abs(duration * turn)
    turns_fast = rotation > MAX_ROTATION
    turn = jnp.where(turns_fast, turn * (MAX_ROTATION / jnp.where(turns_fast, rotation, 1)), turn)
    return (x + duration * dx, y + duration * dy, angle + duration * turn), (dx, dy, turn)


# --- Without contacts -------------------------------------------------------------------------------------------------


def solve_in_the_air(world: World, state: WorldState, motors: Motors) -> Solved:
    """The island while nothing touches, with one round of positions, which is enough in 98 % of steps.

    In numbers without axes, which `vmap` makes to rows of lanes.
    """
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    velocities = _rows(velocities_of(state))
    prepared, impulses, limits = _prepare_joints(world, fixed, state)
    velocities = _warm_start_joints(world, fixed, prepared, velocities, impulses)
    speeds, most = _rows(motors.speed), _rows(TIMESTEP * jnp.asarray(motors.max_torque))

    def iterate(prepared: Any, velocities: Any, impulses: Any, speeds: Any, most: Any) -> Any:
        def once_more(_: Any, carry: Any) -> Any:
            velocities, impulses = carry
            return _solve_joints(world, fixed, prepared, velocities, impulses, speeds, most)

        return jax.lax.fori_loop(0, VELOCITY_ITERATIONS, once_more, (velocities, impulses))

    velocities, impulses = in_blocks(iterate)(prepared, velocities, impulses, speeds, most)
    bodies = [integrate(p, v, TIMESTEP) for p, v in zip(_rows(positions_of(state)), velocities, strict=True)]
    positions, velocities = [p for p, _ in bodies], [v for _, v in bodies]
    positions, is_solved = _solve_joint_positions(world, fixed, limits, positions)
    return Solved(_table(positions), _table(velocities), _table(impulses), jnp.stack(limits), jnp.asarray(is_solved))


# --- With contacts ----------------------------------------------------------------------------------------------------


class Moving(NamedTuple):
    """What of velocities changes from iteration to iteration: rows of numbers, and of pushes a table."""

    velocities: Any
    impulses: Any  # of joints
    pushes: contacts.Impulses


class Task(NamedTuple):
    """An island with contacts, whose velocities are to be solved."""

    contacts: contacts.Contact  # a table, of which `number` rows are there
    number: jax.Array
    order: jax.Array  # their pairs, int32 (P,)
    joints: Any
    limits: Any
    speeds: Any
    most: Any
    start: Moving


def prepare_on_the_ground(world: World, state: WorldState, motors: Motors, manifolds: Manifold) -> Task:
    """The island with contacts, before the first iteration.

    Args:
      state: its pairs are the rows of `manifolds`.
    """
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    order, number = touching(world, state.pairs)
    prepared, pushes = prepare_contacts(world, state.pairs, manifolds, order, number, positions_of(state))

    def warm_start(slot: Any, velocities: jax.Array) -> jax.Array:
        contact = row(prepared, slot)
        moved = contacts.push(contact, _row3(velocities, contact.body), row(pushes, slot))
        pushed: jax.Array = with_row(velocities, contact.body, jnp.stack(moved))
        return pushed

    velocities = jax.lax.fori_loop(0, number, warm_start, velocities_of(state))
    joint, impulses, limits = _prepare_joints(world, fixed, state)
    start = Moving(_warm_start_joints(world, fixed, joint, _rows(velocities), impulses), impulses, pushes)
    speeds, most = _rows(motors.speed), _rows(TIMESTEP * jnp.asarray(motors.max_torque))
    return Task(prepared, number, order, joint, limits, speeds, most, start)


def iterate_on_the_ground(world: World, task: Task) -> Moving:
    """The velocities after all iterations. Of one lane, or of many, whose axis is the last of each array."""
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    slots = jnp.max(task.number)  # rows that a lane has not got have no masses, and change nothing

    def solve(slot: Any, carry: Any) -> Any:
        velocities, pushes = carry
        contact = row(task.contacts, slot)
        is_here = [contact.body == body for body in range(len(velocities))]
        velocity = list(velocities[0])
        for here, other in zip(is_here[1:], velocities[1:], strict=True):
            velocity = [jnp.where(here, new, old) for new, old in zip(other, velocity, strict=True)]
        moved, push = contacts.solve_velocity(contact, tuple(velocity), row(pushes, slot))  # type: ignore[arg-type]
        velocities = tuple(
            tuple(jnp.where(here, new, old) for new, old in zip(moved, other, strict=True))
            for here, other in zip(is_here, velocities, strict=True)
        )
        return velocities, with_row(pushes, slot, push)

    def iterate(_: Any, moving: Moving) -> Moving:
        velocities, impulses = _solve_joints(
            world, fixed, task.joints, moving.velocities, moving.impulses, task.speeds, task.most
        )
        velocities, pushes = jax.lax.fori_loop(0, slots, solve, (velocities, moving.pushes))
        return Moving(velocities, impulses, pushes)

    solved: Moving = jax.lax.fori_loop(0, VELOCITY_ITERATIONS, iterate, task.start)
    return solved


def finish_on_the_ground(world: World, state: WorldState, task: Task, moving: Moving) -> tuple[Solved, jax.Array]:
    """The island after the last iteration, but for positions. Also the impulses of pairs, (P, 2, 2)."""
    order, prepared, pushes = task.order, task.contacts, moving.pushes

    def store(slot: Any, table: jax.Array) -> jax.Array:
        (n0, n1), (t0, t1) = row(pushes, slot)
        new = jnp.stack([jnp.stack([n0, t0]), jnp.stack([n1, t1])])
        pair = row(order, slot)
        keeps = (np.arange(2) > 0)[:, None] & ~row(prepared.is_block, slot)
        stored: jax.Array = with_row(table, pair, jnp.where(keeps, row(table, pair), new))
        return stored

    stored = jax.lax.fori_loop(0, task.number, store, state.pairs.impulse)
    bodies = [integrate(p, v, TIMESTEP) for p, v in zip(_rows(positions_of(state)), moving.velocities, strict=True)]
    solved = Solved(
        _table([p for p, _ in bodies]),
        _table([v for _, v in bodies]),
        _table(moving.impulses),
        jnp.stack(task.limits),
        jnp.zeros((), bool),
    )
    return solved, stored


def solve_on_the_ground(
    world: World, state: WorldState, motors: Motors, manifolds: Manifold
) -> tuple[Solved, jax.Array]:
    """The island with contacts, but for positions. Also the impulses of pairs, (P, 2, 2)."""
    task = prepare_on_the_ground(world, state, motors, manifolds)
    return finish_on_the_ground(world, state, task, iterate_on_the_ground(world, task))


def touching(world: World, pairs: Pairs) -> tuple[jax.Array, jax.Array]:
    """The pairs that touch, in the order of the island: their numbers int32 (P,), and how many they are."""
    number = number_of(pairs)
    order = np.array(world.body_order, np.int32)

    def visit(step: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        found, many = carry
        pair = (step % world.pairs).astype(jnp.int32)
        body = row(order, step // world.pairs)
        is_one = (pair < number) & (row(pairs.count, pair) > 0) & (row(pairs.key, pair) % len(world.bodies) == body)
        return jnp.where(is_one, with_row(found, many, pair), found), many + is_one.astype(jnp.int32)

    start = jnp.zeros(world.pairs, jnp.int32), jnp.int32(0)
    result: tuple[jax.Array, jax.Array] = jax.lax.fori_loop(
        jnp.int32(0), jnp.int32(world.pairs * len(order)), visit, start
    )
    return result


def prepare_contacts(
    world: World, pairs: Pairs, manifolds: Manifold, order: jax.Array, number: jax.Array, positions: jax.Array
) -> tuple[contacts.Contact, contacts.Impulses]:
    """The constraints of the pairs `order`, of which `number` are there, and their impulses: tables of P rows."""

    def prepare(slot: Any) -> tuple[contacts.Contact, contacts.Impulses]:
        pair = row(order, slot)
        key, impulse = row(pairs.key, pair), row(pairs.impulse, pair)
        body = key % len(world.bodies)
        place = row(positions, body)
        contact = contacts.prepare(world, row(manifolds, pair), body, key // len(world.bodies), place[:2], place[2])
        second = jnp.where(contact.is_block, impulse[1], 0)  # what is not solved keeps its impulse, in the table
        return contact, contacts.Impulses((impulse[0, 0], second[0]), (impulse[0, 1], second[1]))

    shapes = jax.eval_shape(prepare, jnp.int32(0))
    table = jax.tree.map(lambda leaf: jnp.zeros((world.pairs, *leaf.shape), leaf.dtype), shapes)

    def add(slot: Any, table: Any) -> Any:
        return with_row(table, slot, prepare(slot))

    result: tuple[contacts.Contact, contacts.Impulses] = jax.lax.fori_loop(0, number, add, table)
    return result


def solve_contacts(
    prepared: contacts.Contact, number: jax.Array, velocities: jax.Array, pushes: contacts.Impulses
) -> tuple[jax.Array, contacts.Impulses]:
    """One iteration of the first `number` contacts, one after the other."""

    def solve(slot: Any, carry: Any) -> Any:
        velocities, pushes = carry
        contact = row(prepared, slot)
        moved, push = contacts.solve_velocity(contact, _row3(velocities, contact.body), row(pushes, slot))
        return with_row(velocities, contact.body, jnp.stack(moved)), with_row(pushes, slot, push)

    result: tuple[jax.Array, contacts.Impulses] = jax.lax.fori_loop(0, number, solve, (velocities, pushes))
    return result


def solve_contact_positions(
    world: World,
    pairs: Pairs,
    manifolds: Manifold,
    order: jax.Array,
    number: jax.Array,
    positions: jax.Array,
    share: np.float32,
) -> tuple[jax.Array, jax.Array]:
    """One iteration of the pairs `order`, and the least separation [m]."""

    def solve(slot: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        positions, least = carry
        pair = row(order, slot)
        body = row(pairs.key, pair) % len(world.bodies)
        moved, separation = contacts.solve_position(world, row(manifolds, pair), body, _row3(positions, body), share)
        return with_row(positions, body, jnp.stack(moved)), jnp.minimum(least, separation)

    result: tuple[jax.Array, jax.Array] = jax.lax.fori_loop(0, number, solve, (positions, jnp.float32(0)))
    return result


def solve_positions(world: World, pairs: Pairs, manifolds: Manifold, solved: Solved, rounds: Any) -> Solved:
    """Further rounds, until errors are small.

    Args:
      rounds: how many there were.
    """
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    order, number = touching(world, pairs)
    limits = _rows(solved.limit)

    def iterate(carry: Any) -> Any:
        rounds, positions, _ = carry
        positions, least = solve_contact_positions(world, pairs, manifolds, order, number, positions, BAUMGARTE)
        rows, is_solved = _solve_joint_positions(world, fixed, limits, _rows(positions))
        return rounds + 1, _table(rows), is_solved & (least >= LEAST_SEPARATION)

    return _iterate_positions(iterate, solved, rounds)


def solve_joint_positions(world: World, solved: Solved, rounds: Any) -> Solved:
    """As `solve_positions`, without contacts."""
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    limits = _rows(solved.limit)

    def iterate(carry: Any) -> Any:
        rounds, positions, _ = carry
        rows, is_solved = _solve_joint_positions(world, fixed, limits, _rows(positions))
        return rounds + 1, _table(rows), is_solved

    return _iterate_positions(iterate, solved, rounds)


def _iterate_positions(iterate: Any, solved: Solved, rounds: Any) -> Solved:
    start = jnp.asarray(rounds, jnp.int32), solved.position, solved.is_solved
    _, positions, is_solved = jax.lax.while_loop(
        lambda carry: (carry[0] < POSITION_ITERATIONS) & ~carry[2], iterate, start
    )
    return solved._replace(position=positions, is_solved=is_solved)


def rest(state: WorldState, solved: Solved) -> WorldState:
    """The state after the solver, asleep if all bodies have hardly moved for long enough."""
    velocity, turn = solved.velocity[:, :2], solved.velocity[:, 2]
    squared = velocity[:, 0] * velocity[:, 0] + velocity[:, 1] * velocity[:, 1]
    is_still = (turn * turn <= SLEEP_ANGULAR_VELOCITY * SLEEP_ANGULAR_VELOCITY) & (
        squared <= SLEEP_VELOCITY * SLEEP_VELOCITY
    )
    still_for = jnp.where(is_still, state.still_for + TIMESTEP, 0)
    sleeps = (jnp.min(still_for) >= SLEEP_AFTER) & solved.is_solved
    return state.replace(
        position=solved.position[:, :2],
        angle=solved.position[:, 2],
        velocity=jnp.where(sleeps, 0, velocity),
        angular_velocity=jnp.where(sleeps, 0, turn),
        still_for=jnp.where(sleeps, 0, still_for),
        joint_impulse=solved.impulse,
        joint_limit=solved.limit,
        awake=~sleeps,
    )


# --- Joints of a world, one after the other ---------------------------------------------------------------------------


def _rows(table: Any) -> Any:
    """The rows of a table as tuples of numbers; of one axis, the numbers."""
    table = jnp.asarray(table)
    if table.ndim == 1:
        return tuple(table[i] for i in range(table.shape[0]))
    return tuple(tuple(table[i, j] for j in range(table.shape[1])) for i in range(table.shape[0]))


def _table(rows: Any) -> jax.Array:
    return jnp.stack([jnp.stack(row) for row in rows])


def _row3(table: jax.Array, number: Any) -> Any:
    values = row(table, number)
    return values[0], values[1], values[2]


def _prepare_joints(world: World, fixed: Any, state: WorldState) -> tuple[Any, Any, Any]:
    angles = _rows(state.angle)
    impulses, limits = _rows(state.joint_impulse), _rows(state.joint_limit)
    found = [
        joints.prepare(each, angles[each.body_a], angles[each.body_b], impulse, limit)
        for each, impulse, limit in zip(fixed, impulses, limits, strict=True)
    ]
    return tuple(map(tuple, zip(*found, strict=True)))  # type: ignore[return-value]


def _warm_start_joints(world: World, fixed: Any, prepared: Any, velocities: Any, impulses: Any) -> Any:
    velocities = list(velocities)
    for j in world.joint_order:
        a, b, (x, y, limit, motor) = fixed[j].body_a, fixed[j].body_b, impulses[j]
        pushed = joints.push(fixed[j], prepared[j], velocities[a], velocities[b], x, y, motor + limit)
        velocities[a], velocities[b] = pushed
    return tuple(velocities)


def _solve_joints(
    world: World, fixed: Any, prepared: Any, velocities: Any, impulses: Any, speeds: Any, most: Any
) -> tuple[Any, Any]:
    velocities, impulses = list(velocities), list(impulses)
    for j in world.joint_order:
        a, b = fixed[j].body_a, fixed[j].body_b
        velocities[a], velocities[b], impulses[j] = joints.solve_velocity(
            fixed[j], prepared[j], velocities[a], velocities[b], impulses[j], speeds[j], most[j]
        )
    return tuple(velocities), tuple(impulses)


def _solve_joint_positions(world: World, fixed: Any, limits: Any, positions: Any) -> tuple[Any, Any]:
    positions, is_solved = list(positions), np.True_
    for j in world.joint_order:
        a, b = fixed[j].body_a, fixed[j].body_b
        positions[a], positions[b], is_small = joints.solve_position(fixed[j], limits[j], positions[a], positions[b])
        is_solved = is_solved & is_small
    return tuple(positions), is_solved
