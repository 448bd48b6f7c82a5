"""The terrain of BipedalWalker: heights that wander, and how far the rays of a lidar go until they meet it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

STEP = 14 / 30  # m between two points
POINTS = 200
LEVEL = 400 / 30 / 4  # m, where the terrain starts and is drawn back to
START = 20  # points of the first stretch, which is flat
SHORTEST, LONGEST = 5, 9  # points of a stretch
RAYS, RANGE = 10, 160 / 30  # m
_Pair = tuple[jax.Array, jax.Array]
_DIRECTIONS = np.stack([np.sin(0.15 * np.arange(RAYS)), -np.cos(0.15 * np.arange(RAYS))], 1) * RANGE


def random_heights(key: jax.Array) -> jax.Array:
    """The heights of a new terrain [m], float32 (POINTS,)."""
    length_key, kick_key = jax.random.split(key)
    most = (POINTS - START) // SHORTEST
    lengths = jax.random.randint(length_key, (most,), SHORTEST, LONGEST + 1)
    begins = jnp.zeros(POINTS, bool).at[START].set(True).at[START + jnp.cumsum(lengths)].set(True, mode="drop")
    kicks = jax.random.uniform(kick_key, (POINTS,), jnp.float32, -1.0, 1.0) / 30
    return heights(begins, kicks)


def heights(begins: jax.Array, kicks: jax.Array) -> jax.Array:
    """The heights [m] that some draws give, float32 (POINTS,).

    Args:
      begins: bool (POINTS,), the points that begin a stretch. They repeat the height before them, as in the reference,
        which leaves them to the obstacles of its hardcore version.
      kicks: float32 (POINTS,), what each point adds to the slope [m]; not used of those that begin a stretch, nor of
        the first stretch.
    """
    kicks = jnp.where(jnp.arange(POINTS) > START, kicks, 0)

    def wander(
        carry: tuple[jax.Array, jax.Array], point: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        height, slope = carry
        begins, kick = point
        slope = jnp.where(begins, slope, 0.8 * slope + 0.01 * jnp.sign(level - height) + kick)
        height = jnp.where(begins, height, height + slope)
        return (height, slope), height

    level = jnp.float32(LEVEL)
    _, terrain = jax.lax.scan(wander, (level, jnp.float32(0)), (begins, kicks))
    return terrain


def edges(heights: jax.Array) -> jax.Array:
    """What lies between the points of a terrain: float32 (POINTS - 1, 4), from x, y to x, y [m]."""
    x = jnp.asarray(STEP * np.arange(POINTS), jnp.float32)
    return jnp.stack([x[:-1], heights[:-1], x[1:], heights[1:]], 1)


def window(edges: jax.Array, x: jax.Array, behind: int, count: int) -> jax.Array:
    """The edges near x [m], float32 (count, 4), of which `behind` lie left of that under it.

    At the ends of the terrain there may be less on one side.
    """
    first = jnp.floor(x / STEP).astype(jnp.int32) - behind  # a slice is moved to where it has all its rows
    return jax.lax.dynamic_slice_in_dim(edges, jnp.maximum(first, 0), count, 0)


def lidar(edges: jax.Array, position: jax.Array) -> jax.Array:
    """How far the rays from a position go until they meet an edge, as shares of RANGE, float32 (RAYS,); 1 if none.

    Source: `b2EdgeShape::RayCast`.

    Args:
      edges: float32 (n, 4).
      position: [m], float32 (2,).
    """
    start, along = edges[:, :2], edges[:, 2:] - edges[:, :2]
    ray = jnp.asarray(_DIRECTIONS, jnp.float32)[:, None, :]  # (RAYS, 1, 2)
    across = _cross(ray, along)  # (RAYS, n)
    share = _cross(start - position, along) / jnp.where(across == 0, 1, across)
    offset = position + share[..., None] * ray - start
    on_edge = (offset * along).sum(-1) / (along * along).sum(-1)
    meets = (across != 0) & (share >= 0) & (share <= 1) & (on_edge >= 0) & (on_edge <= 1)
    return jnp.where(meets, share, 1.0).min(1)


def _cross(a: jax.Array, b: jax.Array) -> jax.Array:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
