"""Impacts within a step (`b2World::SolveTOI`): a body that would pass through an edge is stopped where it meets it.

Bodies are handled one after the other, and without their joints: a body is moved to where it first touches, pushed
apart from what it touches there, solved with these contacts alone, and continues for the rest of the step.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import struct
from jaxenvs.physics2d import contacts, island
from jaxenvs.physics2d.collision import broad_phase
from jaxenvs.physics2d.collision.narrow_phase import Manifold, no_manifolds
from jaxenvs.physics2d.collision.time_of_impact import Sweep, time_of_impact
from jaxenvs.physics2d.constants import (
    BAUMGARTE_OF_IMPACT,
    IMPACT_POSITION_ITERATIONS,
    LATEST_IMPACT,
    LEAST_SEPARATION_OF_IMPACT,
    LINEAR_SLOP,
    MOST_IMPACTS,
    RADIUS,
    TIMESTEP,
    VELOCITY_ITERATIONS,
)
from jaxenvs.physics2d.geometry import frame, row, with_row
from jaxenvs.physics2d.listing import update_pair
from jaxenvs.physics2d.world import World, WorldState
from jaxenvs.transformations import varying


@struct
class Motion:
    """Progress of a step's impacts, beside the WorldState.

    Attributes:
      before: (B, 3), x, y and angle at the start of a body's motion.
      since: (B,), the time of that start, from 0 to 1; `alpha0` of its sweep.
      edge_since: (S,), the same for the static bodies.
      time: (P,), when a pair meets, 1 if it does not.
      is_known: bool (P,), whether that time was computed since the body last moved.
      impacts: int32 (P,), how many a pair had.
      is_off: bool (P,), whether the pair is left out for the rest of the step.
    """

    before: jax.Array
    since: jax.Array
    edge_since: jax.Array
    time: jax.Array
    is_known: jax.Array
    impacts: jax.Array
    is_off: jax.Array


def solve_impacts(world: World, state: WorldState, before: jax.Array, edges: jax.Array) -> WorldState:
    """Return the state after a step's impacts.

    Args:
      state: after the solver and the search for new pairs.
      before: (B, 3), x, y and angle of the bodies before the step.
      edges: (E, 4).
    """
    table = world.pairs
    motion = Motion(
        before=before,
        since=jnp.zeros(len(world.bodies), jnp.float32),
        edge_since=jnp.zeros(int(world.edge_body.max()) + 1, jnp.float32),
        time=jnp.ones(table, jnp.float32),
        is_known=jnp.zeros(table, bool),
        impacts=jnp.zeros(table, jnp.int32),
        is_off=jnp.zeros(table, bool),
    )

    def look(carry: tuple[WorldState, Motion, jax.Array]) -> tuple[WorldState, Motion, jax.Array]:
        state, motion, _ = carry
        motion, pair, time = _first_impact(world, state, motion, edges)
        meets = time <= LATEST_IMPACT
        state, motion = jax.lax.cond(
            meets,
            lambda: _solve_impact(world, state, motion, edges, pair, time),
            lambda: (state, motion),
        )
        return state, motion, meets

    start = varying((state, motion, jnp.ones((), bool)), state, motion, edges)
    return jax.lax.while_loop(lambda carry: carry[2], look, start)[0]


def _first_impact(
    world: World, state: WorldState, motion: Motion, edges: jax.Array
) -> tuple[Motion, jax.Array, jax.Array]:
    """Find the pair that meets first, of several the newest. Return the motion with computed times, the pair, and its
    time.
    """
    number = broad_phase.number_of(state.pairs)

    def look(pair: jax.Array, carry: tuple[Motion, jax.Array, jax.Array]) -> tuple[Motion, jax.Array, jax.Array]:
        motion, first, earliest = carry
        is_asked = ~row(motion.is_off, pair) & (row(motion.impacts, pair) <= MOST_IMPACTS)
        motion = jax.lax.cond(
            is_asked & ~row(motion.is_known, pair),
            lambda motion: _time_of(world, state, motion, edges, pair),
            lambda motion: motion,
            motion,
        )
        time = jnp.where(is_asked, row(motion.time, pair), 1)
        return motion, jnp.where(time < earliest, pair, first), jnp.minimum(time, earliest)

    start = varying((motion, jnp.int32(0), jnp.float32(1)), state, motion, edges)
    found: tuple[Motion, jax.Array, jax.Array] = jax.lax.fori_loop(0, number, look, start)
    return found


def _time_of(world: World, state: WorldState, motion: Motion, edges: jax.Array, pair: jax.Array) -> Motion:
    """Return the motion with the time of one pair."""
    key = row(state.pairs.key, pair)
    body, edge = key % len(world.bodies), key // len(world.bodies)
    static = row(world.edge_body.astype(np.int32), edge)
    # Both motions have to start at the same time: the later of the two.
    since, edge_since = row(motion.since, body), row(motion.edge_since, static)
    late = jnp.maximum(since, edge_since)
    after = _place_of(state, body)
    before = _between(row(motion.before, body), after, since, late)
    segment, vertices, center = row(edges, edge), row(world.vertices, body), row(world.center, body)

    # A body that stays away from the edge the whole time never meets it: that holds for most pairs, and costs two boxes
    # to check. Between the boxes of start and end, a vertex swings out by no more than a circle's arc from its chord.
    here, there = (frame(x, y, angle, center) for x, y, angle in (before, after))
    box = broad_phase.swept_box(vertices, here, there)
    radius = np.sqrt(((world.vertices - world.center[:, None]) ** 2).sum(-1)).max()
    swing = np.float32(radius / 8) * (after[2] - before[2]) ** 2
    grown = box + (2 * LINEAR_SLOP + swing) * np.array([-1, -1, 1, 1], np.float32)
    may_meet = broad_phase.overlap(grown, broad_phase.edge_boxes(segment[None], RADIUS)[0])

    def search() -> tuple[jax.Array, jax.Array]:
        sweep = Sweep(tuple(before), tuple(after), center)
        return time_of_impact(segment, vertices, sweep)

    never = varying((jnp.zeros((), bool), jnp.float32(1)), state, motion, edges)
    meets, share = jax.lax.cond(may_meet, search, lambda: never)
    time = jnp.where(meets, jnp.minimum(late + (1 - late) * share, 1), 1)
    return dataclasses.replace(
        motion,
        before=with_row(motion.before, body, before),
        since=with_row(motion.since, body, late),
        edge_since=with_row(motion.edge_since, static, late),
        time=with_row(motion.time, pair, time),
        is_known=with_row(motion.is_known, pair, True),
    )


def _place_of(state: WorldState, body: jax.Array) -> jax.Array:
    return jnp.concatenate([row(state.position, body), row(state.angle, body)[None]])


def _between(before: jax.Array, after: jax.Array, since: jax.Array, time: jax.Array) -> jax.Array:
    """Return the position at some time in a motion that lasts from `since` to 1."""
    share = jnp.where(time > since, (time - since) / jnp.where(since < 1, 1 - since, 1), 0)
    return (1 - share) * before + share * after


def _solve_impact(
    world: World, state: WorldState, motion: Motion, edges: jax.Array, pair: jax.Array, time: jax.Array
) -> tuple[WorldState, Motion]:
    """Return state and motion after one pair has met at some time."""
    body = row(state.pairs.key, pair) % len(world.bodies)
    here = _between(row(motion.before, body), _place_of(state, body), row(motion.since, body), time)
    tried = dataclasses.replace(
        motion,
        is_known=with_row(motion.is_known, pair, False),
        impacts=with_row(motion.impacts, pair, row(motion.impacts, pair) + 1),
    )
    touched, met, manifolds, order, number = _touch(world, _with_place(state, body, here), tried, edges, pair, time)

    def miss() -> tuple[WorldState, Motion]:
        """Leave the pair out, because it does not touch there. Reported contacts stay reported."""
        missed = _with_place(touched, body, _place_of(state, body))
        return missed, dataclasses.replace(tried, is_off=with_row(tried.is_off, pair, True))

    def hit() -> tuple[WorldState, Motion]:
        return _go_on(world, touched, met, edges, manifolds, order, number, time)

    solved: tuple[WorldState, Motion] = jax.lax.cond(number > 0, hit, miss)
    return solved


def _touch(
    world: World, state: WorldState, motion: Motion, edges: jax.Array, pair: jax.Array, time: jax.Array
) -> tuple[WorldState, Motion, Manifold, jax.Array, jax.Array]:
    """Update the pair and, if it touches, the other pairs of its body, from the newest.

    Returns:
      State and motion; the table of manifolds; the numbers int32 (P,) of the pairs that touch, and how many there are.
    """
    body = row(state.pairs.key, pair) % len(world.bodies)

    def visit(visited: jax.Array, carry: Any) -> Any:
        state, edge_since, manifolds, order, number = carry
        this = jnp.where(visited == 0, pair, visited - 1).astype(jnp.int32)
        key = row(state.pairs.key, this)
        is_next = (visited == 0) | ((this != pair) & (number > 0) & (key % len(world.bodies) == body))
        state, manifolds = jax.lax.cond(
            is_next,
            lambda: update_pair(world, state, manifolds, edges, this),
            lambda: (state, manifolds),
        )
        touches = is_next & (row(state.pairs.count, this) > 0)
        static = row(world.edge_body.astype(np.int32), key // len(world.bodies))
        edge_since = jnp.where(touches, with_row(edge_since, static, time), edge_since)
        order = jnp.where(touches, with_row(order, number, this), order)
        return state, edge_since, manifolds, order, number + touches.astype(jnp.int32)

    nothing = motion.edge_since, no_manifolds(world.pairs), jnp.zeros(world.pairs, jnp.int32), jnp.int32(0)
    state, edge_since, manifolds, order, number = jax.lax.fori_loop(
        jnp.int32(0), broad_phase.number_of(state.pairs) + 1, visit, varying((state, *nothing), state, motion, edges)
    )
    return state, dataclasses.replace(motion, edge_since=edge_since), manifolds, order, number


def _go_on(
    world: World,
    state: WorldState,
    motion: Motion,
    edges: jax.Array,
    manifolds: Manifold,
    order: jax.Array,
    number: jax.Array,
    time: jax.Array,
) -> tuple[WorldState, Motion]:
    """Return state and motion after the rest of the step of a body that touches `number` of the pairs `order`."""
    body = row(state.pairs.key, order[0]) % len(world.bodies)

    def push_apart(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        rounds, places, _ = carry
        places, least = contacts.solve_all_positions(
            world, state.pairs, manifolds, order, number, places, BAUMGARTE_OF_IMPACT
        )
        return rounds + 1, places, least >= LEAST_SEPARATION_OF_IMPACT

    _, places, _ = jax.lax.while_loop(
        lambda carry: (carry[0] < IMPACT_POSITION_ITERATIONS) & ~carry[2],
        push_apart,
        varying((jnp.int32(0), island.positions_of(state), jnp.zeros((), bool)), state, manifolds, order, number),
    )
    prepared, pushes = contacts.prepare_all(world, state.pairs, manifolds, order, number, places)
    velocities, _ = jax.lax.fori_loop(
        0,
        VELOCITY_ITERATIONS,
        lambda _, carry: contacts.solve_all_velocities(prepared, number, *carry),
        # Impulses start from zero, and are not stored.
        varying((island.velocities_of(state), jax.tree.map(jnp.zeros_like, pushes)), state, prepared, number),
    )
    start = row(places, body)
    end, velocity = island.integrate(start, row(velocities, body), (1 - time) * TIMESTEP)
    fat, has_left = broad_phase.fat_box(world, body, row(state.fat_box, body), start, end)
    moved = _with_place(state, body, jnp.stack(end)).replace(
        velocity=with_row(state.velocity, body, jnp.stack(velocity[:2])),
        angular_velocity=with_row(state.angular_velocity, body, velocity[2]),
        fat_box=with_row(state.fat_box, body, fat),
    )
    has_moved = (np.arange(len(world.bodies)) == body) & has_left
    found = broad_phase.candidates(world, moved.fat_box, broad_phase.edge_boxes(edges), has_moved)
    pairs, new = broad_phase.add_pairs(moved.pairs, found)
    # New pairs stand before the others. Pairs of the body were updated, and count again.
    shift = jnp.arange(world.pairs) - new
    is_new, old = shift < 0, jnp.maximum(shift, 0)
    is_reset = is_new | (pairs.key % len(world.bodies) == body)
    return moved.replace(pairs=pairs), dataclasses.replace(
        motion,
        before=with_row(motion.before, body, start),
        since=with_row(motion.since, body, time),
        time=jnp.where(is_new, 1, motion.time[old]),
        is_known=~is_reset & motion.is_known[old],
        impacts=jnp.where(is_new, 0, motion.impacts[old]),
        is_off=~is_reset & motion.is_off[old],
    )


def _with_place(state: WorldState, body: jax.Array, place: jax.Array) -> WorldState:
    return state.replace(
        position=with_row(state.position, body, place[:2]), angle=with_row(state.angle, body, place[2])
    )
