"""Many trainings at once: vmap, spread over the cores of a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.compilation import in_order


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _enlarge_thread_pool() -> bool:
    """Let XLA have threads to spare, and say whether it has.

    Programs that run side by side wait for each other for ever once they have taken all threads of XLA's pool, which
    has one for each core (seen with jaxlib 0.10.2). Its size is read once, when JAX starts.
    """
    enough = num_cores() + 2
    try:
        from jax._src.xla_bridge import backends_are_initialized

        if not backends_are_initialized():
            os.environ.setdefault("PJRT_NPROC", str(enough))
    except ImportError:
        pass
    return int(os.environ.get("PJRT_NPROC", 0)) >= enough


_CAN_SPREAD = _enlarge_thread_pool()


def sweep(function: Callable[..., Any], *arguments: Any) -> Any:
    """`jax.vmap(function)(*arguments)`, compiled; for functions that run long, as `train` with many keys.

    In XLA's CPU backend the small matrix products that vmap makes batches of run on one core. So there the batch is cut
    into as many groups as there are cores, and one program runs for all of them side by side; if this module was
    imported before JAX ran anything, or PJRT_NPROC is at least two more than there are cores.

    Args:
      arguments: pytrees of arrays with one leading axis for all.
    """
    size = jax.tree.leaves(arguments)[0].shape[0]
    num_groups = min(num_cores(), size) if _CAN_SPREAD and jax.default_backend() == "cpu" else 1
    if num_groups == 1:
        return jax.jit(jax.vmap(function), compiler_options=in_order())(*arguments)
    # The last group is filled up with the last element, so that all groups have one shape and share their program.
    length = -(-size // num_groups)
    rows = [jnp.minimum(jnp.arange(first, first + length), size - 1) for first in range(0, size, length)]
    groups = [jax.tree.map(lambda leaf, at=at: leaf[at], arguments) for at in rows]
    program = jax.jit(jax.vmap(function), compiler_options=in_order()).lower(*groups[0]).compile()
    with ThreadPoolExecutor(len(groups)) as pool:
        results = list(pool.map(lambda group: jax.block_until_ready(program(*group)), groups))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:size], *results)
