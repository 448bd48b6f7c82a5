"""What is used of JAX under names that are private or not promised: a release that renames one is mended here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

# The beginning of the names of events by which `jax.monitoring` tells what tracing, lowering and compiling took.
COMPILE_EVENTS = "/jax/core/compile/"
# The event of a compiled function that was read from the cache on disk.
CACHE_HIT_EVENT = "/jax/compilation_cache/cache_hits"


def has_run() -> bool | None:
    """Whether JAX has begun to run in this process, after which some of its settings count no more; None: unknown."""
    try:
        from jax._src.xla_bridge import backends_are_initialized
    except ImportError:
        return None
    return backends_are_initialized()


def shard_map(function: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`jax.shard_map`, by which nothing is summed up but what the function sums up itself.

    With its check of what varies, the gradient of a parameter that is the same everywhere is summed over all devices
    already, and its mean is too large by their number. Adam and a limit of norms hide that.
    """
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def is_traced(leaf: Any) -> bool:
    """Whether a value is one that a program is being made for, and so has no number yet."""
    return isinstance(leaf, jax.core.Tracer)


def setting(name: str) -> Any:
    """The value of a setting of JAX, also of those that have no attribute."""
    return jax.config.values[name]
