"""Update of pairs at the beginning of a step, and of the reported contacts (`b2ContactManager::Collide`)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.physics2d.collision import broad_phase
from jaxenvs.physics2d.collision.boxes import collide_box
from jaxenvs.physics2d.collision.narrow_phase import Manifold, collide, no_manifolds
from jaxenvs.physics2d.geometry import Frame, frame, row, with_row
from jaxenvs.physics2d.world import Pairs, World, WorldState
from jaxenvs.transformations import varying


def update_pair(
    world: World, state: WorldState, manifolds: Manifold, edges: jax.Array, pair: jax.Array
) -> tuple[WorldState, Manifold]:
    """Return state and table of manifolds after one pair was updated (`b2Contact::Update`).

    Points that existed before, by their ids, keep their impulses.
    """
    old: Pairs = row(state.pairs, pair)
    body, edge = old.key % len(world.bodies), old.key // len(world.bodies)
    position = row(state.position, body)
    at = frame(position[0], position[1], row(state.angle, body), row(world.center, body))
    manifold = _collide(world, body, edge, row(edges, edge), at)
    impulses = []
    for point in range(2):
        is_old = [(manifold.id[point] == old.id[i]) & (i < old.count) for i in range(2)]
        kept = jnp.where(is_old[0], old.impulse[0], jnp.where(is_old[1], old.impulse[1], 0))
        impulses.append(jnp.where(point < manifold.count, kept, 0))
    new = Pairs(key=old.key, count=manifold.count, id=manifold.id, impulse=jnp.stack(impulses))
    began, ended = (manifold.count > 0) & (old.count == 0), (manifold.count == 0) & (old.count > 0)
    state = state.replace(pairs=with_row(state.pairs, pair, new))
    return _told(state, body, began, ended), with_row(manifolds, pair, manifold)


def _collide(world: World, body: jax.Array, number: jax.Array, edge: jax.Array, at: Frame) -> Manifold:
    if not world.boxes:
        return collide(world, body, edge, at)
    manifold: Manifold = jax.lax.cond(
        number < world.boxes,
        lambda: collide_box(world, body, edge, at),
        lambda: collide(world, body, edge, at),
    )
    return manifold


def update_pairs(world: World, state: WorldState, edges: jax.Array) -> tuple[WorldState, Manifold]:
    """Return state and manifolds after updating all pairs, from the newest; pairs that are far apart are dropped."""
    boxes = broad_phase.edge_boxes(edges)

    def visit(pair: jax.Array, carry: tuple[WorldState, Manifold, jax.Array]) -> Any:
        state, manifolds, kept = carry
        old = row(state.pairs, pair)
        body, edge = old.key % len(world.bodies), old.key // len(world.bodies)
        is_near = broad_phase.overlap(row(state.fat_box, body), row(boxes, edge))

        def keep(state: WorldState, manifolds: Manifold) -> tuple[WorldState, Manifold, jax.Array]:
            """Move the pair to its new row, because pairs before it may have been dropped, and update it."""
            state = state.replace(pairs=with_row(state.pairs, kept, old))
            return *update_pair(world, state, manifolds, edges, kept), kept + 1

        def drop(state: WorldState, manifolds: Manifold) -> tuple[WorldState, Manifold, jax.Array]:
            return _told(state, body, jnp.zeros((), bool), old.count > 0), manifolds, kept

        return jax.lax.cond(is_near, keep, drop, state, manifolds)

    start = varying((state, no_manifolds(world.pairs), jnp.int32(0)), state, edges)
    state, manifolds, kept = jax.lax.fori_loop(0, broad_phase.number_of(state.pairs), visit, start)
    is_kept = jnp.arange(world.pairs) < kept
    pairs = dataclasses.replace(
        state.pairs, key=jnp.where(is_kept, state.pairs.key, -1), count=jnp.where(is_kept, state.pairs.count, 0)
    )
    return state.replace(pairs=pairs), manifolds


def _told(state: WorldState, body: jax.Array, began: jax.Array, ended: jax.Array) -> WorldState:
    """Report to the state that a contact of a body began, or ended, or neither."""
    has_contact = (row(state.has_contact, body) | began) & ~ended
    return state.replace(
        has_contact=with_row(state.has_contact, body, has_contact),
        has_touched=with_row(state.has_touched, body, row(state.has_touched, body) | began),
    )
