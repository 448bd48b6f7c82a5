"""Gradients of vectors, as compiled code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxenvs.learn.optimization import split

BATCH = 64


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="Other backends concatenate quickly.")
@pytest.mark.parametrize("width", [16, 1024])  # of 2**20 weights, XLA takes another path
def test_no_part_is_computed_inside_of_a_concatenation(width):
    if width < 256 and jax.__version_info__ >= (0, 11):
        pytest.skip("JAX 0.11.1 and later concatenate short gradients, which takes as long.")
    # The sum over a batch would then be computed for each of the weights: fault 508, an update took 5 times as long.
    sizes = (width * width, width)

    def loss(vector, inputs):
        weight, bias = split(vector, sizes)
        return jnp.mean(jax.nn.relu(inputs @ weight.reshape(width, width) + bias) ** 2)

    step = jax.jit(lambda vector, inputs: vector - 0.1 * jax.grad(loss)(vector, inputs))
    vector, inputs = np.ones(sum(sizes), np.float32), np.ones((BATCH, width), np.float32)
    code = step.lower(vector, inputs).compile().as_text()
    assert "dynamic-update-slice" in code
    assert "concatenate" not in code
