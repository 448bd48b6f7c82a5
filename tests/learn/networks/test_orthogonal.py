"""Orthogonal weights."""

import jax
import numpy as np

from jaxenvs.learn.networks.actor_critic import orthogonal

SHAPE = (4, 8)


def draw(key):
    return orthogonal(key, SHAPE, 2.0)


def test_rows_are_orthogonal_and_as_long_as_the_gain():
    drawn = draw(jax.random.key(0))
    np.testing.assert_allclose(drawn @ drawn.T, 4 * np.eye(4), atol=1e-5)


def test_a_batch_is_drawn_one_by_one():
    keys = jax.random.split(jax.random.key(0), 3)
    code = jax.jit(jax.vmap(draw)).lower(keys).as_text()
    decompositions = [line for line in code.splitlines() if "geqrf" in line]
    assert decompositions
    assert not any("tensor<3x" in line for line in decompositions)  # a batch can hang: see `orthogonal`
    np.testing.assert_array_equal(jax.vmap(draw)(keys), [draw(key) for key in keys])


def test_it_is_not_in_the_way_of_gradients():
    def loss(scale):
        return (scale * draw(jax.random.key(0))).sum()

    assert np.isfinite(jax.jit(jax.grad(loss))(1.0))
    assert np.isfinite(jax.vmap(jax.grad(loss))(np.ones(3))).all()
