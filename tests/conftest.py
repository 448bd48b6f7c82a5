"""Shared by all tests: the compilation cache, and x64 as a fixture."""

import os
from pathlib import Path

# One thread for each of PyTorch's operations, here and in subprocesses: tests run side by side, and threads that wait
# for a core spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import pytest

# Tests compile far more than they run: keep the programs between runs and share them between workers.
jax.config.update(
    "jax_compilation_cache_dir", os.environ.get("JAX_CACHE", str(Path(__file__).parent.parent / ".jax_cache"))
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture
def x64():
    """64-bit arithmetic for one test."""
    with jax.enable_x64(True):
        yield
