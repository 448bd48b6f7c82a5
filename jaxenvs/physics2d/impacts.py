"""Impacts within a step (`b2World::SolveTOI`): who would pass through an edge is stopped where it meets it.

One body after the other, and without its joints: it is put where it touches first, pushed apart from what it touches
there, solved with these contacts alone, and goes on for the rest of the step.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import struct
from jaxenvs.physics2d import broad_phase, island
from jaxenvs.physics2d.contacts import Impulses
from jaxenvs.physics2d.geometry import frame, row, with_row
from jaxenvs.physics2d.listing import update_pair
from jaxenvs.physics2d.narrow_phase import no_manifolds
from jaxenvs.physics2d.settings import (
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
from jaxenvs.physics2d.time_of_impact import Sweep, time_of_impact
from jaxenvs.physics2d.world import World, WorldState


@struct
class Motion:
    """What is known of a step's impacts so far, beside the state of the world.

    Attributes:
      before: (B, 3), x, y and angle where the motion of a body starts.
      since: (B,), the time of that, from 0 to 1; `alpha0` of its sweep.
      edge_since: (S,), the same of the static bodies.
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
    """The state after a step's impacts.

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
    motion, pair, time = _first_impact(world, state, motion, edges)

    def solve(carry: Any) -> Any:
        state, motion, pair, time = carry
        state, motion = _solve_impact(world, state, motion, edges, pair, time)
        return state, *_first_impact(world, state, motion, edges)

    start = state, motion, pair, time
    return jax.lax.while_loop(lambda carry: carry[3] <= LATEST_IMPACT, solve, start)[0]


def _first_impact(
    world: World, state: WorldState, motion: Motion, edges: jax.Array
) -> tuple[Motion, jax.Array, jax.Array]:
    """The pair that meets first, of several the newest, and when. What had to be computed for it is kept."""
    number = broad_phase.number_of(state.pairs)

    def look(pair: Any, carry: Any) -> Any:
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

    return jax.lax.fori_loop(0, number, look, (motion, jnp.int32(0), jnp.float32(1)))  # type: ignore[no-any-return]


def _time_of(world: World, state: WorldState, motion: Motion, edges: jax.Array, pair: Any) -> Motion:
    """The motion with the time of one pair."""
    key = row(state.pairs.key, pair)
    body, edge = key % len(world.bodies), key // len(world.bodies)
    static = row(world.edge_body.astype(np.int32), edge)
    # Both motions are to start at the same time: the later of the two.
    since, edge_since = row(motion.since, body), row(motion.edge_since, static)
    late = jnp.maximum(since, edge_since)
    after = _place_of(state, body)
    before = _between(row(motion.before, body), after, since, late)
    segment, vertices, center = row(edges, edge), row(world.vertices, body), row(world.center, body)

    # What stays away from the edge the whole time never meets it: most pairs, at the cost of two boxes.
    # Between the two a vertex swings out of them by no more than a circle's arc out of its chord.
    box = broad_phase.swept_box(vertices, frame(*before, center), frame(*after, center))
    radius = np.sqrt(((world.vertices - world.center[:, None]) ** 2).sum(-1)).max()
    swing = np.float32(radius / 8) * (after[2] - before[2]) ** 2
    grown = box + (2 * LINEAR_SLOP + swing) * np.array([-1, -1, 1, 1], np.float32)
    may_meet = broad_phase.overlap(grown, broad_phase.edge_boxes(segment[None], RADIUS)[0])

    def search() -> tuple[jax.Array, jax.Array]:
        sweep = Sweep(tuple(before), tuple(after), center)  # type: ignore[arg-type]
        return time_of_impact(segment, vertices, sweep)

    meets, share = jax.lax.cond(may_meet, search, lambda: (jnp.zeros((), bool), jnp.float32(1)))
    time = jnp.where(meets, jnp.minimum(late + (1 - late) * share, 1), 1)
    return dataclasses.replace(
        motion,
        before=with_row(motion.before, body, before),
        since=with_row(motion.since, body, late),
        edge_since=with_row(motion.edge_since, static, late),
        time=with_row(motion.time, pair, time),
        is_known=with_row(motion.is_known, pair, True),
    )


def _place_of(state: WorldState, body: Any) -> jax.Array:
    return jnp.concatenate([row(state.position, body), row(state.angle, body)[None]])


def _between(before: jax.Array, after: jax.Array, since: Any, time: Any) -> jax.Array:
    """Where a motion that lasts from `since` to 1 is at some time."""
    share = jnp.where(time > since, (time - since) / jnp.where(since < 1, 1 - since, 1), 0)
    return (1 - share) * before + share * after


def _solve_impact(
    world: World, state: WorldState, motion: Motion, edges: jax.Array, pair: jax.Array, time: jax.Array
) -> tuple[WorldState, Motion]:
    """State and motion after one pair has met at some time."""
    key = row(state.pairs.key, pair)
    body = key % len(world.bodies)
    static = row(world.edge_body.astype(np.int32), key // len(world.bodies))
    here = _between(row(motion.before, body), _place_of(state, body), row(motion.since, body), time)
    put = _with_place(state, body, here)
    manifolds = no_manifolds(world.pairs)
    touched, manifolds = update_pair(world, put, manifolds, edges, pair)
    tried = dataclasses.replace(
        motion,
        is_known=with_row(motion.is_known, pair, False),
        impacts=with_row(motion.impacts, pair, row(motion.impacts, pair) + 1),
    )

    def miss() -> tuple[WorldState, Motion]:
        """They do not touch there, and are left out. What the listener was told stays."""
        missed = _with_place(touched, body, _place_of(state, body))
        return missed, dataclasses.replace(tried, is_off=with_row(tried.is_off, pair, True))

    def hit() -> tuple[WorldState, Motion]:
        def update(other: Any, carry: Any) -> Any:
            state, manifolds, order, many = carry
            is_one = (row(state.pairs.key, other) % len(world.bodies) == body) & (other != pair)
            state, manifolds = jax.lax.cond(
                is_one,
                lambda state, manifolds: update_pair(world, state, manifolds, edges, other),
                lambda state, manifolds: (state, manifolds),
                state,
                manifolds,
            )
            touches = is_one & (row(state.pairs.count, other) > 0)
            order = jnp.where(touches, with_row(order, many, other), order)
            return state, manifolds, order, many + touches.astype(jnp.int32)

        order = jnp.full(world.pairs, pair, jnp.int32)
        number = broad_phase.number_of(state.pairs)
        after, together, order, many = jax.lax.fori_loop(
            jnp.int32(0), number, update, (touched, manifolds, order, jnp.int32(1))
        )

        def push(carry: Any) -> Any:
            rounds, places, _ = carry
            places, least = island.solve_contact_positions(
                world, after.pairs, together, order, many, places, BAUMGARTE_OF_IMPACT
            )
            return rounds + 1, places, least >= LEAST_SEPARATION_OF_IMPACT

        _, places, _ = jax.lax.while_loop(
            lambda carry: (carry[0] < IMPACT_POSITION_ITERATIONS) & ~carry[2],
            push,
            (jnp.int32(0), island.positions_of(after), jnp.zeros((), bool)),
        )
        prepared, pushes = island.prepare_contacts(world, after.pairs, together, order, many, places)
        nothing: Impulses = jax.tree.map(jnp.zeros_like, pushes)

        def iterate(_: Any, carry: Any) -> Any:
            return island.solve_contacts(prepared, many, *carry)

        velocities, _ = jax.lax.fori_loop(0, VELOCITY_ITERATIONS, iterate, (island.velocities_of(after), nothing))
        start = row(places, body)
        end, velocity = island.integrate(start, row(velocities, body), (1 - time) * TIMESTEP)
        fat, has_left = broad_phase.fat_box(world, body, row(after.fat_box, body), start, end)
        moved = _with_place(after, body, jnp.stack(end)).replace(
            velocity=with_row(after.velocity, body, jnp.stack(velocity[:2])),
            angular_velocity=with_row(after.angular_velocity, body, velocity[2]),
            fat_box=with_row(after.fat_box, body, fat),
        )
        is_body = np.arange(len(world.bodies)) == body
        found = broad_phase.candidates(world, moved.fat_box, broad_phase.edge_boxes(edges), is_body & has_left)
        pairs, new = broad_phase.add_pairs(moved.pairs, found)
        # New pairs stand before the others.
        shift = jnp.arange(world.pairs) - new
        is_new, old = shift < 0, jnp.maximum(shift, 0)
        of_body = pairs.key % len(world.bodies) == body
        return moved.replace(pairs=pairs), dataclasses.replace(
            tried,
            before=with_row(motion.before, body, start),
            since=with_row(motion.since, body, time),
            edge_since=with_row(motion.edge_since, static, time),
            time=jnp.where(is_new, 1, tried.time[old]),
            is_known=~is_new & ~of_body & tried.is_known[old],
            impacts=jnp.where(is_new, 0, tried.impacts[old]),
            is_off=~is_new & ~of_body & tried.is_off[old],  # a pair that was looked at anew counts again
        )

    return jax.lax.cond(row(touched.pairs.count, pair) > 0, hit, miss)


def _with_place(state: WorldState, body: Any, place: jax.Array) -> WorldState:
    return state.replace(
        position=with_row(state.position, body, place[:2]), angle=with_row(state.angle, body, place[2])
    )
