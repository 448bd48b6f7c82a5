"""BipedalWalker keeps the contract, is drawn, and its window of edges and its lidar are what they say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxenvs
from jaxenvs.envs.box2d import terrain
from jaxenvs.envs.box2d.bipedal_walker import BipedalWalker


@pytest.mark.thorough  # what a step gives, tests of parity hold; this compiles two of them
def test_keeps_the_contract() -> None:
    jaxenvs.check_env(jaxenvs.make("BipedalWalker-v3"))


def test_shapes_and_dtypes_of_reset_and_step_agree() -> None:
    env = BipedalWalker()
    started = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)))
    stepped = jax.eval_shape(env.step, started[0], jax.ShapeDtypeStruct((4,), np.float32))
    assert started == stepped


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
