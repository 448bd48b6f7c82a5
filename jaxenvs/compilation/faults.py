"""Faults of single versions of XLA for CPUs: how to find them, and the compiler options that avoid them.

Each function that finds one takes compiler options, and compiles with them; None: with the defaults of `jax.jit`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.version import __version__ as jaxlib_version

PRODUCTS_ALONE = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
# Options that avoid a fault, by the versions of jaxlib that have it.
GUARDS: dict[str, dict[str, str]] = {
    # Sums over broadcast arrays are wrong in most calls: tensorflow/tensorflow#126812. And with 0.10.2, some rows of a
    # matrix product are wrong where the product is fused with a sum: jax-ml/jax#39103. With this option, XLA fuses
    # products with nothing. Updates of PPO and SAC take as long as without, and differ in the last bits.
    "0.10.2": PRODUCTS_ALONE,
    "0.11.0": PRODUCTS_ALONE,
    "0.11.2": PRODUCTS_ALONE,
    # Besides, an update of a few bytes in a loop copies the whole array: jax-ml/jax#40101. 1,000 updates of 1 MB take
    # 90 ms instead of 0.04; without the pass that makes small loops one kernel, they take 0.1 ms.
    "0.11.1": PRODUCTS_ALONE | {"xla_disable_hlo_passes": "small-while-loop-hoisting"},
}
# A copy of the long array takes thousands of times as long as an update of a short one; without copies, both take as
# long, but the long one has to be filled first.
LENGTHS = 2**10, 2**20
NUM_UPDATES = 2000
SLOWDOWN_OF_COPIES = 100


def guard() -> dict[str, str]:
    """Return the options that avoid the fault of the jaxlib that is installed, or none."""
    return GUARDS.get(jaxlib_version, {})


def flags() -> str:
    """Return the value of XLA_FLAGS that sets the guard for a whole process."""
    return " ".join(f"--{name}={value}" for name, value in guard().items())


def _jit(function: Callable[..., Any], options: Mapping[str, str] | None, donate: bool = False) -> Callable[..., Any]:
    return jax.jit(
        function, compiler_options=None if options is None else dict(options), donate_argnums=0 if donate else ()
    )


def count_wrong_sums(options: Mapping[str, str] | None = None) -> int:
    """Count in how many of 50 calls a sum over a broadcast array is wrong (tensorflow/tensorflow#126812)."""
    total = _jit(lambda array: jnp.sum(jnp.broadcast_to(array, (2, 1024, 1024))), options)
    ones = np.ones((1024, 1), np.float32)
    return sum(float(total(ones)) != 2 * 1024 * 1024 for _ in range(50))


def count_wrong_rows(options: Mapping[str, str] | None = None) -> int:
    """Count the rows of a matrix product that this jaxlib computes wrong: 0, except with 0.10.2 (jax-ml/jax#39103)."""
    rows = np.zeros((2**15 + 1, 3), np.float32)  # with one row less, all are right
    rows[:, 0] = np.arange(len(rows)) % 1000
    squared_norm = jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2))
    found = _jit(squared_norm, options)(rows)
    return int(np.sum(np.asarray(found) != rows[:, 0] ** 2))


def count_wrong_shifts(options: Mapping[str, str] | None = None) -> int:
    """Count the elements that this jaxlib computes wrong where an array is shifted in place and then reshaped.

    All versions up to 0.12.0.1 do (openxla/xla#49176), and no option that keeps XLA's fusions avoids it.
    """

    def shifted(array: jax.Array) -> jax.Array:
        array = array + 1
        return array.at[1:].set(array[:-1]).reshape(1, *array.shape)

    array = np.arange(128).reshape(8, 16)
    found = np.asarray(_jit(shifted, options)(array))[0]
    return int(np.sum(found != np.concatenate([array[:1], array[:-1]]) + 1))


def count_wrong_slices(options: Mapping[str, str] | None = None) -> int:
    """Count how many of 48 slices of a slice are wrong: some are where they begin outside of the array.

    JAX moves such a slice to the end of the array. Versions from 0.10.1 to 0.11.2 do not do that right if the array is
    itself such a slice (openxla/xla#49121).
    """

    def slice_twice(array: jax.Array, first: int, second: int) -> jax.Array:
        return jax.lax.dynamic_slice(jax.lax.dynamic_slice(array, (first,), (4,)), (second,), (1,))

    found, array = _jit(slice_twice, options), np.arange(10)
    return sum(
        int(found(array, first, second)[0]) != min(first, 6) + min(second, 3)
        for first in range(8)
        for second in range(6)
    )


def copies_in_loops(options: Mapping[str, str] | None = None) -> bool:
    """Return whether a small update in a loop copies the whole array, as with jaxlib 0.11.1 (jax-ml/jax#40101)."""

    def fill(array: jax.Array) -> jax.Array:
        filled: jax.Array = jax.lax.fori_loop(
            0, NUM_UPDATES, lambda index, array: array.at[index % 512].set(1.5), array
        )
        return filled

    def seconds(length: int) -> float:
        array, best = jnp.zeros(length, jnp.float32), float("inf")
        filled = _jit(fill, options, donate=True)
        array = filled(array).block_until_ready()
        for _ in range(3):
            begin = time.perf_counter()
            array = filled(array).block_until_ready()
            best = min(best, time.perf_counter() - begin)
        return best

    short, long = map(seconds, LENGTHS)
    return long > SLOWDOWN_OF_COPIES * short
