"""Forces, velocities and positions of one step: all bodies are one island (`b2Island.cpp`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d import contacts, joints
from jaxenvs.physics2d.collision.narrow_phase import Manifold
from jaxenvs.physics2d.constants import (
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
from jaxenvs.physics2d.geometry import row, rows, table, with_row
from jaxenvs.physics2d.kernels import in_blocks
from jaxenvs.physics2d.world import Pairs, World, WorldState
from jaxenvs.transformations import varying

_Given: TypeAlias = float | jax.Array | np.ndarray | np.float32
_Carry: TypeAlias = tuple[joints.Velocities, contacts.Impulses]
_Positions: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]  # rounds, positions, whether errors are small


class Motors(NamedTuple):
    """Motors of all joints, (J,): target speeds [rad/s], and greatest torques [N m]."""

    speed: jax.typing.ArrayLike
    max_torque: jax.typing.ArrayLike


class Solved(NamedTuple):
    """Result of the solver.

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
    """Return the positions (B, 3): x, y and angle."""
    return jnp.concatenate([state.position, state.angle[:, None]], axis=1)


def velocities_of(state: WorldState) -> jax.Array:
    """Return the velocities (B, 3): of x, y and angle."""
    return jnp.concatenate([state.velocity, state.angular_velocity[:, None]], axis=1)


def accelerate(world: World, state: WorldState, gravity: _Given, force: _Given, torque: _Given) -> WorldState:
    """Return the velocities after a step's forces (B, 2) [N] and torques (B,) [N m] and gravity [m/s²]."""
    pull = jnp.stack([jnp.zeros((), jnp.float32), jnp.asarray(gravity, jnp.float32)])
    return state.replace(
        velocity=state.velocity + TIMESTEP * (pull + world.inverse_mass[:, None] * force),
        angular_velocity=state.angular_velocity + TIMESTEP * world.inverse_inertia * torque,
    )


def integrate(
    position: joints.Rows, velocity: joints.Rows, duration: _Given
) -> tuple[joints.Velocity, joints.Velocity]:
    """Return x, y and angle of a body after some time, and the velocities, limited to what a step may move and turn."""
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
    """Solve the island while nothing touches, with one round of positions, which is enough in 98 % of steps.

    It computes with scalars, which `vmap` turns into rows of batch elements.
    """
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    velocities = rows(velocities_of(state))
    prepared, impulses, limits = joints.prepare_all(fixed, state)
    velocities = joints.warm_start_all(world, fixed, prepared, velocities, impulses)
    speeds, most = rows(motors.speed), rows(TIMESTEP * jnp.asarray(motors.max_torque))

    def iterate(prepared: Any, velocities: joints.Velocities, impulses: joints.Impulses, speeds: Any, most: Any) -> Any:
        def once_more(_: jax.Array, carry: Any) -> tuple[joints.Velocities, joints.Impulses]:
            velocities, impulses = carry
            return joints.solve_all_velocities(world, fixed, prepared, velocities, impulses, speeds, most)

        start = varying((velocities, impulses), prepared, velocities, impulses, speeds, most)
        return jax.lax.fori_loop(0, VELOCITY_ITERATIONS, once_more, start)

    velocities, impulses = in_blocks(iterate)(prepared, velocities, impulses, speeds, most)
    bodies = [integrate(p, v, TIMESTEP) for p, v in zip(rows(positions_of(state)), velocities, strict=True)]
    velocities = [v for _, v in bodies]
    positions, is_solved = joints.solve_all_positions(world, fixed, limits, [p for p, _ in bodies])
    return Solved(table(positions), table(velocities), table(impulses), jnp.stack(limits), jnp.asarray(is_solved))


# --- With contacts ----------------------------------------------------------------------------------------------------


class Moving(NamedTuple):
    """Velocities and impulses that change from iteration to iteration: rows of numbers, and a table for contacts."""

    velocities: joints.Velocities
    impulses: joints.Impulses  # of joints
    pushes: contacts.Impulses


class Task(NamedTuple):
    """Island with contacts, whose velocities are to be solved."""

    contacts: contacts.Contact  # a table, of which `number` rows are used
    number: jax.Array
    order: jax.Array  # the contacts' pairs, int32 (P,)
    joints: Sequence[joints.Joint]
    limits: joints.Rows
    speeds: joints.Rows
    most: joints.Rows
    start: Moving


def prepare_on_the_ground(world: World, state: WorldState, motors: Motors, manifolds: Manifold) -> Task:
    """Return the island with contacts, before the first iteration.

    Args:
      state: its pairs are the rows of `manifolds`.
    """
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    order, number = contacts.touching(world, state.pairs)
    prepared, pushes = contacts.prepare_all(world, state.pairs, manifolds, order, number, positions_of(state))

    velocities = contacts.warm_start_all(prepared, number, velocities_of(state), pushes)
    joint, impulses, limits = joints.prepare_all(fixed, state)
    start = Moving(joints.warm_start_all(world, fixed, joint, rows(velocities), impulses), impulses, pushes)
    speeds, most = rows(motors.speed), rows(TIMESTEP * jnp.asarray(motors.max_torque))
    return Task(prepared, number, order, joint, limits, speeds, most, start)


def iterate_on_the_ground(world: World, task: Task) -> Moving:
    """Return the velocities after all iterations, each of which solves the joints, then the contacts.

    Args:
      task: of one environment, or of many, whose axis is the last of each array.
    """
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    slots = jnp.max(task.number)  # rows beyond an environment's number have no masses, and change nothing

    def solve_contact(slot: jax.Array, carry: _Carry) -> _Carry:
        velocities, pushes = carry
        contact = row(task.contacts, slot)
        is_here, velocity = _velocity_of(contact.body, velocities)
        moved, push = contacts.solve_velocity(contact, velocity, row(pushes, slot))
        return _with_velocity(is_here, moved, velocities), with_row(pushes, slot, push)

    def iterate(_: jax.Array, moving: Moving) -> Moving:
        velocities, impulses = joints.solve_all_velocities(
            world, fixed, task.joints, moving.velocities, moving.impulses, task.speeds, task.most
        )
        velocities, pushes = jax.lax.fori_loop(0, slots, solve_contact, (velocities, moving.pushes))
        return Moving(velocities, impulses, pushes)

    solved: Moving = jax.lax.fori_loop(0, VELOCITY_ITERATIONS, iterate, varying(task.start, task))
    return solved


def _velocity_of(body: jax.Array, velocities: joints.Velocities) -> tuple[list[jax.Array], Any]:
    """Return which body it is, as flags, and its velocity."""
    is_here = [body == number for number in range(len(velocities))]
    velocity = list(velocities[0])
    for here, other in zip(is_here[1:], velocities[1:], strict=True):
        velocity = [jnp.where(here, new, old) for new, old in zip(other, velocity, strict=True)]
    return is_here, tuple(velocity)


def _with_velocity(is_here: list[jax.Array], moved: joints.Velocity, velocities: joints.Velocities) -> Any:
    return tuple(
        tuple(jnp.where(here, new, old) for new, old in zip(moved, other, strict=True))
        for here, other in zip(is_here, velocities, strict=True)
    )


def finish_on_the_ground(world: World, state: WorldState, task: Task, moving: Moving) -> tuple[Solved, jax.Array]:
    """Return the island after the last iteration, except for positions; and the impulses of pairs, (P, 2, 2)."""
    order, prepared, pushes = task.order, task.contacts, moving.pushes

    def store(slot: jax.Array, impulses: jax.Array) -> jax.Array:
        (n0, n1), (t0, t1) = row(pushes, slot)
        new = jnp.stack([jnp.stack([n0, t0]), jnp.stack([n1, t1])])
        pair = row(order, slot)
        keeps = (np.arange(2) > 0)[:, None] & ~row(prepared.is_block, slot)
        return with_row(impulses, pair, jnp.where(keeps, row(impulses, pair), new))

    stored = jax.lax.fori_loop(0, task.number, store, varying(state.pairs.impulse, task, moving, state.pairs))
    bodies = [integrate(p, v, TIMESTEP) for p, v in zip(rows(positions_of(state)), moving.velocities, strict=True)]
    solved = Solved(
        table([p for p, _ in bodies]),
        table([v for _, v in bodies]),
        table(moving.impulses),
        jnp.stack(task.limits),
        jnp.zeros((), bool),
    )
    return solved, stored


def solve_on_the_ground(
    world: World, state: WorldState, motors: Motors, manifolds: Manifold
) -> tuple[Solved, jax.Array]:
    """Solve the island with contacts, except for positions. Also return the impulses of pairs, (P, 2, 2)."""
    task = prepare_on_the_ground(world, state, motors, manifolds)
    return finish_on_the_ground(world, state, task, iterate_on_the_ground(world, task))


def solve_positions(world: World, pairs: Pairs, manifolds: Manifold, solved: Solved, rounds: int | jax.Array) -> Solved:
    """Run further rounds of positions, until errors are small.

    Args:
      rounds: how many rounds were run.
    """
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    order, number = contacts.touching(world, pairs)
    limits = rows(solved.limit)

    def iterate(carry: _Positions) -> _Positions:
        rounds, positions, _ = carry
        positions, least = contacts.solve_all_positions(world, pairs, manifolds, order, number, positions, BAUMGARTE)
        moved, is_solved = joints.solve_all_positions(world, fixed, limits, rows(positions))
        return rounds + 1, table(moved), is_solved & (least >= LEAST_SEPARATION)

    return _iterate_positions(iterate, solved, rounds)


def solve_joint_positions(world: World, solved: Solved, rounds: int | jax.Array, has_gradient: bool = False) -> Solved:
    """Run further rounds of positions as `solve_positions` does, without contacts.

    Args:
      has_gradient: whether to compute all rounds and mask the ones that are not needed, which reverse mode can
        differentiate.
    """
    fixed = [joints.constants(world, number) for number in range(len(world.joints))]
    limits = rows(solved.limit)

    def iterate(carry: _Positions) -> _Positions:
        rounds, positions, _ = carry
        moved, is_solved = joints.solve_all_positions(world, fixed, limits, rows(positions))
        return rounds + 1, table(moved), is_solved

    if not has_gradient:
        return _iterate_positions(iterate, solved, rounds)

    def iterate_or_not(_: jax.Array, carry: _Positions) -> Any:
        goes_on = (carry[0] < POSITION_ITERATIONS) & ~carry[2]
        return jax.tree.map(lambda new, old: jnp.where(goes_on, new, old), iterate(carry), carry)

    start = varying((jnp.asarray(rounds, jnp.int32), solved.position, solved.is_solved), solved)
    _, positions, is_solved = jax.lax.fori_loop(0, POSITION_ITERATIONS, iterate_or_not, start)
    return solved._replace(position=positions, is_solved=is_solved)


def _iterate_positions(iterate: Callable[[_Positions], _Positions], solved: Solved, rounds: int | jax.Array) -> Solved:
    start = varying((jnp.asarray(rounds, jnp.int32), solved.position, solved.is_solved), solved)
    _, positions, is_solved = jax.lax.while_loop(
        lambda carry: (carry[0] < POSITION_ITERATIONS) & ~carry[2], iterate, start
    )
    return solved._replace(position=positions, is_solved=is_solved)


def rest(state: WorldState, solved: Solved) -> WorldState:
    """Return the state after the solver, asleep if all bodies have hardly moved for long enough."""
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
