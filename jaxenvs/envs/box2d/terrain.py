"""Terrain of BipedalWalker: random heights, and the distances that a lidar measures."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.environment import struct
from jaxenvs.transformations import varying

STEP = 14 / 30  # m between two points
POINTS = 200
LEVEL = 400 / 30 / 4  # m, height at the start, to which the terrain is pulled back
START = 20  # points of the first stretch, which is flat
SHORTEST, LONGEST = 5, 9  # points of a stretch of grass
GRASS, STUMP, STAIRS, PIT = range(4)  # kinds of stretches
OF_STAIRS = 4  # points of a step
DEPTH = 4  # of a pit, in steps between points
RAYS, RANGE = 10, 160 / 30  # m
DIRECTIONS = np.stack([np.sin(0.15 * np.arange(RAYS)), -np.cos(0.15 * np.arange(RAYS))], 1) * RANGE


@struct
class Draws:
    """Random draws for each point of a terrain, arrays (POINTS,). Each point uses only some of them.

    Attributes:
      kick: float32, added to the slope [m], from -1/30 to 1/30.
      length: int32, of the stretch of grass that begins after the point [points].
      kind: int32, of the obstacle that begins after the point; all are GRASS in the version without obstacles.
      size: int32, 0 or 1, of the obstacle that begins there: a stump is 1 + size points wide and high, stairs have 3 +
        size steps, a pit is 3 + size points from wall to wall.
      rise: int32, -1 or 1, whether stairs that begin there lead down or up.
    """

    kick: jax.Array
    length: jax.Array
    kind: jax.Array
    size: jax.Array
    rise: jax.Array


@struct
class Terrain:
    """Heights of a terrain's points [m], float32 (POINTS,), and which obstacle begins at each point, if any.

    kind, size and rise: int32 (POINTS,), as in Draws; kind is GRASS where none begins.
    """

    heights: jax.Array
    kind: jax.Array
    size: jax.Array
    rise: jax.Array


def draw(key: jax.Array, hardcore: bool) -> Draws:
    """Draw the random numbers of a new terrain."""
    length_key, kick_key, kind_key, size_key, rise_key = jax.random.split(key, 5)
    shape = (POINTS,)
    kind = jax.random.randint(kind_key, shape, STUMP, PIT + 1, jnp.int32)
    return Draws(
        kick=jax.random.uniform(kick_key, shape, jnp.float32, -1.0, 1.0) / 30,
        length=jax.random.randint(length_key, shape, SHORTEST, LONGEST + 1, jnp.int32),
        kind=kind if hardcore else jnp.full(shape, GRASS, jnp.int32),
        size=jax.random.randint(size_key, shape, 0, 2, jnp.int32),
        rise=2 * jax.random.randint(rise_key, shape, 0, 2, jnp.int32) - 1,
    )


class _Place(NamedTuple):
    """Position in the construction of a terrain."""

    height: jax.Array
    slope: jax.Array
    kind: jax.Array  # of the stretch
    begins: jax.Array  # bool, at this point
    left: jax.Array  # points of the stretch
    length: jax.Array  # of the obstacle
    base: jax.Array  # the height at which it began
    rise: jax.Array


def build(draws: Draws) -> Terrain:
    """Build the terrain of some draws: stretches of grass, and obstacles between them.

    The heights of grass are random, except for its first point, which repeats the height before it, as in the
    reference. The first stretch is level. An obstacle's boxes stand on the terrain or reach down from it
    (obstacles.py); a pit is a gap in the terrain, and under stairs the terrain slopes.
    """
    draws = dataclasses.replace(draws, kick=jnp.where(jnp.arange(POINTS) > START, draws.kick, 0))

    def point(place: _Place, drawn: Draws) -> tuple[_Place, Terrain]:
        height, slope, kind, begins, left, length, base, rise = place
        lengths = [1 + drawn.size, OF_STAIRS * (3 + drawn.size)]
        new_length = jnp.select([kind == STUMP, kind == STAIRS], lengths, 5 + drawn.size)
        is_new = begins & (kind != GRASS)
        left, length = jnp.where(is_new, new_length, left), jnp.where(is_new, new_length, length)
        base, rise = jnp.where(is_new, height, base), jnp.where(is_new, drawn.rise, rise)
        wandering = 0.8 * slope + 0.01 * jnp.sign(level - height) + drawn.kick
        slope = jnp.where((kind == GRASS) & ~begins, wandering, slope)
        step = (length - left - rise) * rise / OF_STAIRS
        height = jnp.select(
            [begins, kind == GRASS, kind == PIT, kind == STAIRS],
            [height, height + slope, base - jnp.where(left > 1, DEPTH * STEP, 0), base + step * STEP],
            height,
        ).astype(jnp.float32)
        made = Terrain(height, jnp.where(begins, kind, GRASS), drawn.size, drawn.rise)
        ends = left == 1
        after = jnp.where(kind == GRASS, drawn.kind, GRASS)
        left, kind = jnp.where(ends, drawn.length, left - 1), jnp.where(ends, after, kind)
        return _Place(height, slope, kind, ends, left, length, base, rise), made

    level = jnp.float32(LEVEL)
    nothing = jnp.int32(0)
    start = _Place(
        level, jnp.float32(0), jnp.int32(GRASS), jnp.zeros((), bool), jnp.int32(START), nothing, level, nothing
    )
    _, terrain = jax.lax.scan(point, varying(start, draws), draws)
    return terrain


def edges(heights: jax.Array) -> jax.Array:
    """Return the edges between the points of a terrain: float32 (POINTS - 1, 4), from x, y to x, y [m]."""
    x = jnp.asarray(STEP * np.arange(POINTS), jnp.float32)
    return jnp.stack([x[:-1], heights[:-1], x[1:], heights[1:]], 1)


def window(edges: jax.Array, x: jax.Array, behind: int, count: int) -> jax.Array:
    """Return the edges near x [m], float32 (count, 4), of which `behind` are to the left of the edge under x.

    At the ends of the terrain there may be fewer on one side.
    """
    first = jnp.floor(x / STEP).astype(jnp.int32) - behind  # a slice is moved so that all its rows exist
    return jax.lax.dynamic_slice_in_dim(edges, jnp.maximum(first, 0), count, 0)


def lidar(edges: jax.Array, position: jax.Array) -> jax.Array:
    """Return the distances at which rays from a position meet an edge, as shares of RANGE, float32 (RAYS,); 1 if none.

    Source: `b2EdgeShape::RayCast`.

    Args:
      edges: float32 (n, 4).
      position: [m], float32 (2,).
    """
    start, along = edges[:, :2], edges[:, 2:] - edges[:, :2]
    ray = jnp.asarray(DIRECTIONS, jnp.float32)[:, None, :]  # (RAYS, 1, 2)
    across = _cross(ray, along)  # (RAYS, n)
    share = _cross(start - position, along) / jnp.where(across == 0, 1, across)
    offset = position + share[..., None] * ray - start
    on_edge = (offset * along).sum(-1) / (along * along).sum(-1)
    meets = (across != 0) & (share >= 0) & (share <= 1) & (on_edge >= 0) & (on_edge <= 1)
    return jnp.where(meets, share, 1.0).min(1)


def _cross(a: jax.Array, b: jax.Array) -> jax.Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
