"""Tests here run where JAX and PyTorch see an NVIDIA GPU, and are skipped elsewhere."""

import os

import jax
import pytest
import torch

# The two share the GPU's memory. Before JAX runs anything.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.fixture(autouse=True)
def gpu():
    """Not at import, where it would start JAX before other tests want it started."""
    if not torch.cuda.is_available() or jax.default_backend() != "gpu":
        pytest.skip("needs an NVIDIA GPU that JAX and PyTorch see")
