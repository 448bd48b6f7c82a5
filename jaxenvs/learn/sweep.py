"""Many trainings in one program: side by side on an accelerator, spread over the cores of a CPU.

Import it before JAX has run anything: it then gives XLA more threads than there are cores, which it needs for that, and
which makes single programs of large kernels a tenth slower. So nothing else imports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from jaxenvs.compilation import compiler_options


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
    """What `jax.vmap(function)(*arguments)` gives, compiled; for functions that run long, as `train` with many keys.

    On a CPU the batch is cut into as many groups as there are cores, and each core takes one after the other of its
    group: in XLA's CPU backend a batch of small matrix products, which vmap makes, is slower than the products one by
    one, and runs on one core. If XLA has no threads to spare (see above; or set PJRT_NPROC to two more than there are
    cores) one core takes all.

    Args:
      arguments: pytrees of arrays with one leading axis for all.
    """
    return compile_sweep(function, *arguments)(*arguments)


def compile_sweep(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """The function that `sweep` calls, for arguments of these shapes."""
    if jax.default_backend() != "cpu":
        return jax.jit(jax.vmap(function)).lower(*arguments).compile()
    size = jax.tree.leaves(arguments)[0].shape[0]
    num_groups = min(num_cores(), size) if _CAN_SPREAD else 1
    # The last group is filled up with the last element, so that all groups have one shape and share their program.
    length = -(-size // num_groups)
    rows = [jnp.minimum(jnp.arange(first, first + length), size - 1) for first in range(0, size, length)]

    def one_by_one(arguments: Any) -> Any:
        return jax.lax.map(lambda each: function(*each), arguments)

    def group(arguments: Any, rows: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[rows], arguments)

    program = jax.jit(one_by_one, compiler_options=compiler_options()).lower(group(arguments, rows[0])).compile()

    def run(*arguments: Any) -> Any:
        def run_group(rows: jax.Array) -> Any:
            return jax.block_until_ready(program(group(arguments, rows)))  # type: ignore[no-untyped-call]

        with ThreadPoolExecutor(len(rows)) as pool:
            results = list(pool.map(run_group, rows))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:size], *results)

    return run
