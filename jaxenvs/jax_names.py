"""JAX functions whose names are private or not promised: a JAX release that renames one is fixed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

# What has no annotations in JAX: attributes, functions and constructors.
config: Any = jax.config
partition_spec: Callable[..., PartitionSpec] = PartitionSpec
shape_struct: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct
optimization_barrier: Callable[[jax.Array], jax.Array] = jax.lax.optimization_barrier
block_until_ready: Callable[[Any], Any] = jax.block_until_ready
sequential_vmap: Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]] = jax.custom_batching.sequential_vmap
effects_barrier: Callable[[], None] = jax.effects_barrier
# The common prefix of the events by which `jax.monitoring` reports the time for tracing, lowering and compiling.
COMPILE_EVENTS = "/jax/core/compile/"
# The event of a compiled function that was read from the cache on disk.
CACHE_HIT_EVENT = "/jax/compilation_cache/cache_hits"


def has_run() -> bool | None:
    """Return whether JAX has been initialized in this process, after which it ignores some settings; None: unknown."""
    try:
        from jax._src.xla_bridge import backends_are_initialized
    except ImportError:
        return None
    return backends_are_initialized()


def shard_map(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """Call `jax.shard_map` so that values are summed over devices only where the function itself sums them.

    With JAX's check of varying values (`check_vma`), the gradient of a parameter that is the same on all devices is
    already summed over them, and its mean is too large by the number of devices. Adam and a limit of norms hide that.
    """
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def varies_over_devices(array: jax.Array) -> bool:
    """Return whether `jax.shard_map` with its check (`check_vma`) has typed an array as different on each device."""
    aval: Any = jax.typeof(array)
    return bool(aval.vma if hasattr(aval, "vma") else aval.manual_axis_type.varying)


def is_traced(leaf: object) -> bool:
    """Return whether a value is a tracer, which has no number yet."""
    return isinstance(leaf, jax.core.Tracer)


def is_tracing() -> bool:
    """Return whether this code runs to be compiled or transformed by JAX, as inside of `jax.jit` or `jax.vmap`."""
    try:
        from jax._src.core import trace_state_clean
    except ImportError:
        return True
    return not trace_state_clean()


def setting(name: str) -> Any:
    """Return the value of a JAX setting, including settings that have no attribute."""
    return jax.config.values[name]
