"""Obstacles of BipedalWalker's hardcore version: stumps, pits and stairs, made of boxes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.envs.box2d.terrain import DEPTH, DIRECTIONS, GRASS, OF_STAIRS, PIT, POINTS, STAIRS, STEP, STUMP, Terrain

BOXES = 39  # the most that fit: seventeen pits, a stump, and stairs of four steps at the end
LARGEST = max(OF_STAIRS, DEPTH) * STEP  # m, largest width or height
NOWHERE = 1000.0  # m, position of unused boxes
_X = np.asarray(STEP * np.arange(POINTS + 5 * OF_STAIRS), np.float32)


def boxes(terrain: Terrain) -> jax.Array:
    """Return the boxes of a terrain: left, bottom, right, top [m], float32 (BOXES, 4), from left to right."""
    numbers = jnp.select([terrain.kind == kind for kind in (STUMP, STAIRS, PIT)], [1, 3 + terrain.size, 2], 0)
    last = jnp.cumsum(numbers)
    row = jnp.arange(BOXES)
    point = jnp.minimum(jnp.sum(last[None] <= row[:, None], axis=1), POINTS - 1)
    kind, y, size, rise = (each[point] for each in (terrain.kind, terrain.heights, terrain.size, terrain.rise))
    number = row - (last - numbers)[point]  # of the box within its obstacle
    is_there = (row < last[-1]) & (kind != GRASS)
    is_stump, is_stairs = kind == STUMP, kind == STAIRS
    start = point + number * jnp.where(is_stairs, OF_STAIRS, 3 + size)  # the other wall of a pit
    end = start + jnp.select([is_stump, is_stairs], [1 + size, OF_STAIRS], 1)
    up = y + jnp.select([is_stump, is_stairs], [(1 + size) * STEP, number * rise * STEP], 0)
    down = jnp.select([is_stump, is_stairs], [y, y + (number * rise - 1) * STEP], y - DEPTH * STEP)
    x = jnp.asarray(_X)
    start, end = (jnp.minimum(each, x.size - 1) for each in (start, end))  # too large in rows without a box
    found = jnp.stack([x[start], down, x[end], up], axis=1).astype(jnp.float32)
    nowhere = np.array([NOWHERE, 0, NOWHERE + 1, 1], np.float32)
    return jnp.where(is_there[:, None], found, nowhere)


def lidar(boxes: jax.Array, position: jax.Array) -> jax.Array:
    """Return the distances at which rays from a position enter a box, as `terrain.lidar` does for edges.

    A box that contains the position does not stop them. Source: `b2PolygonShape::RayCast`.
    """
    ray = jnp.asarray(DIRECTIONS, jnp.float32)[:, None, :]  # (RAYS, 1, 2)
    low, high = boxes[:, :2] - position, boxes[:, 2:] - position  # (n, 2)
    is_level = ray == 0  # it is always between the two sides, or never
    share = jnp.stack([low, high])[:, None] / jnp.where(is_level, 1, ray)  # (2, RAYS, n, 2)
    between = jnp.where((low <= 0) & (high >= 0), np.inf, -np.inf)
    enters = jnp.where(is_level, -between, share.min(0)).max(-1)
    leaves = jnp.where(is_level, between, share.max(0)).min(-1)
    meets = (enters > 0) & (enters <= leaves) & (enters <= 1)
    return jnp.where(meets, enters, 1.0).min(1)


SHOWN = 10  # the most boxes in a picture, which is 20 m wide


def shown(boxes: jax.Array, left: jax.Array) -> list[list[jax.Array]]:
    """Return the boxes in a picture with this left side [m]: left, bottom, right, top."""
    first = jnp.sum(boxes[:, 2] < left)
    near = jax.lax.dynamic_slice_in_dim(boxes, first, SHOWN, 0)
    return [[near[i, j] for j in range(4)] for i in range(SHOWN)]
