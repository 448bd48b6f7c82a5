"""The window of edges and the lidar of BipedalWalker are what they say."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs.envs.box2d import terrain


def test_the_window_holds_what_is_near() -> None:
    edges = terrain.edges(jnp.arange(terrain.POINTS, dtype=jnp.float32))
    for x in (-3.0, 0.0, 4.7, 50.0, 88.0, 95.0):
        near = np.asarray(terrain.window(edges, jnp.float32(x), 1, 14))
        assert (np.diff(near[:, 0]) > 0).all()  # neighbours
        if 0 < x < 86:
            assert near[1, 0] <= x < near[1, 2]
    assert near[-1, 2] == edges[-1, 2]


@pytest.mark.thorough
def test_lidar_measures_level_ground() -> None:
    near = terrain.window(terrain.edges(jnp.full(terrain.POINTS, 2.0)), jnp.float32(10), 1, 14)
    above = jnp.array([10.0, 5.0])
    angles = 0.15 * np.arange(terrain.RAYS)
    np.testing.assert_allclose(terrain.lidar(near, above), np.minimum(3 / np.cos(angles) / terrain.RANGE, 1), rtol=1e-5)
