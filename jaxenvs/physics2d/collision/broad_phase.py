"""Pairs of a body and an edge that are near, in the order in which Box2D lists them (`b2BroadPhase.cpp`).

A pair is created when the fat boxes of the two begin to overlap, and is put at the head of the list; it is dropped when
they no longer do. New pairs of one search are created by edge, then by body, because proxies are numbered in the order
of their creation. The tree in which Box2D searches for pairs has no other effect.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.physics2d.constants import FAT_MARGIN, FAT_MULTIPLIER, RADIUS
from jaxenvs.physics2d.geometry import Frame, Number, frame, row
from jaxenvs.physics2d.world import Pairs, World
from jaxenvs.transformations import varying


def no_pairs(world: World) -> Pairs:
    """Return an empty table."""
    return Pairs(
        key=jnp.full(world.pairs, -1, jnp.int32),
        count=jnp.zeros(world.pairs, jnp.int32),
        id=jnp.zeros((world.pairs, 2), jnp.int32),
        impulse=jnp.zeros((world.pairs, 2, 2), jnp.float32),
    )


def number_of(pairs: Pairs) -> jax.Array:
    """Return the number of pairs, int32."""
    return jnp.sum(pairs.key >= 0, dtype=jnp.int32)


def edge_boxes(edges: jax.Array, margin: np.float32 = RADIUS + FAT_MARGIN) -> jax.Array:
    """Return the boxes (E, 4) of edges (E, 4 or 8): left, bottom, right, top."""
    x, y = edges[:, 0::2], edges[:, 1::2]
    return jnp.stack([x.min(1) - margin, y.min(1) - margin, x.max(1) + margin, y.max(1) + margin], axis=1)


def overlap(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return whether boxes (..., 4) have a point in common."""
    return (b[..., 0] <= a[..., 2]) & (b[..., 1] <= a[..., 3]) & (a[..., 0] <= b[..., 2]) & (a[..., 1] <= b[..., 3])


def tight_box(vertices: np.ndarray | jax.Array, frame: Frame) -> jax.Array:
    """Return the box (4,) of a polygon (V, 2) with its skin."""
    x, y = frame.place(vertices[..., 0], vertices[..., 1])
    return jnp.stack([jnp.min(x) - RADIUS, jnp.min(y) - RADIUS, jnp.max(x) + RADIUS, jnp.max(y) + RADIUS])


def swept_box(vertices: np.ndarray | jax.Array, before: Frame, now: Frame) -> jax.Array:
    """Return the box (4,) that contains a polygon both before and after a motion."""
    a, b = tight_box(vertices, before), tight_box(vertices, now)
    return jnp.concatenate([jnp.minimum(a[:2], b[:2]), jnp.maximum(a[2:], b[2:])])


def fat_box(
    world: World, body: int | jax.Array, fat: jax.Array, before: Iterable[Number], now: Iterable[Number]
) -> tuple[jax.Array, jax.Array]:
    """Return the fat box (4,) of a body after a motion, and whether it has changed (`b2Fixture::Synchronize`).

    Args:
      fat: the previous fat box.
      before, now: x and y of the center of mass, and the angle.
    """
    center, vertices = row(world.center, body), row(world.vertices, body)
    start, end = (frame(x, y, angle, center) for x, y, angle in (before, now))
    box = swept_box(vertices, start, end)
    has_left = jnp.any(box[:2] < fat[:2]) | jnp.any(box[2:] > fat[2:])
    ahead = FAT_MULTIPLIER * jnp.stack([end.x - start.x, end.y - start.y])
    new = jnp.concatenate([box[:2] - FAT_MARGIN + jnp.minimum(ahead, 0), box[2:] + FAT_MARGIN + jnp.maximum(ahead, 0)])
    return jnp.where(has_left, new, fat), has_left


def candidates(world: World, fat: jax.Array, boxes: jax.Array, has_moved: jax.Array) -> jax.Array:
    """Return, bool (E * B,) by key, the pairs of bodies that have moved with edges whose box overlaps theirs."""
    return (overlap(fat[None], boxes[:, None]) & has_moved[None]).reshape(-1)


def add_pairs(pairs: Pairs, found: jax.Array) -> tuple[Pairs, jax.Array]:
    """Add the pairs of `found` that the table lacks; return the table, and how many were added.

    A full table loses its oldest pair.
    """
    keys = np.arange(found.shape[0], dtype=np.int32)
    last = np.int32(found.shape[0])

    def next_of(found: jax.Array) -> jax.Array:
        return jnp.min(jnp.where(found, keys, last))

    def add(carry: tuple[jax.Array, jax.Array, Pairs, jax.Array]) -> tuple[jax.Array, jax.Array, Pairs, jax.Array]:
        key, found, pairs, number = carry
        is_new = jnp.all(pairs.key != key)
        new = Pairs(key=key, count=jnp.int32(0), id=jnp.zeros(2, jnp.int32), impulse=jnp.zeros((2, 2), jnp.float32))
        pairs = jax.tree.map(
            lambda table, values: jnp.where(is_new, jnp.concatenate([values[None], table[:-1]]), table), pairs, new
        )
        found = found & (keys != key)
        return next_of(found), found, pairs, number + is_new.astype(jnp.int32)

    start = varying((next_of(found), found, pairs, jnp.int32(0)), found, pairs)
    _, _, pairs, number = jax.lax.while_loop(lambda carry: carry[0] < last, add, start)
    return pairs, number
