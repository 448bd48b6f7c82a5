"""Two results that JAX 0.12 does not compute to the last bit: docs/install.md names them."""

import jax
import numpy as np

ROUNDS = jax.__version_info__ >= (0, 12)


def assert_same_bits(actual, desired, err_msg=""):
    """Assert that arrays are equal; with JAX 0.12, to rounding."""
    if ROUNDS:
        np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-7, err_msg=err_msg)
    else:
        np.testing.assert_array_equal(actual, desired, err_msg=err_msg)
