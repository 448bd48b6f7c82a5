"""Trace libraries that support only 32 bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Result = TypeVar("Result")


def in_32_bits(function: Callable[..., Result], *args: object) -> Result:
    """Call `function(*args)`, traced as without `jax_enable_x64`.

    Some libraries name 32-bit types in one branch of a `jax.lax.cond` and leave the other to JAX's default: with 64
    bits they cannot be traced.
    """
    args = jax.tree.map(_narrow, args)
    with jax.enable_x64(False), warnings.catch_warnings():
        # from constants that the import creates
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        return function(*args)


def _narrow(leaf: object) -> Any:
    dtype = getattr(leaf, "dtype", None)
    if dtype not in (jnp.int64, jnp.uint64, jnp.float64):
        return leaf
    return jnp.asarray(leaf, f"{dtype.kind}4")
