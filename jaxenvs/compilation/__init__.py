"""Check that JAX can run in this process, and choose the options with which XLA compiles for a CPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from jaxenvs.compilation.default_device import platform
from jaxenvs.compilation.faults import guard
from jaxenvs.compilation.process_guard import guard_process
from jaxenvs.jax_names import config, has_run, is_tracing

Result = TypeVar("Result")

_ran_before_fork = False
_is_orphaned = False


def is_usable() -> bool:
    """Return whether JAX can run here: not in a process forked from one in which JAX had run."""
    return not _is_orphaned


def require_usable() -> None:
    """Raise in a process forked from one in which JAX had run: there, JAX would wait forever.

    Raises:
      RuntimeError: this is such a process.
    """
    if _is_orphaned:
        raise RuntimeError(
            "JAX ran in the process that this process was forked from. Its threads do not exist here, so any compiled "
            'function would hang: start processes with the method "spawn" or "forkserver".'
        )


def _before_fork() -> None:
    # Ask here, not in the child, where a thread that no longer exists may hold the lock that `has_run` takes.
    global _ran_before_fork
    _ran_before_fork = bool(has_run())


def _after_fork() -> None:
    global _is_orphaned
    _is_orphaned = _is_orphaned or _ran_before_fork


if hasattr(os, "register_at_fork"):  # platforms without fork need no check
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)

guard_process()

# Run one kernel after the other. By default XLA distributes kernels that do not depend on each other to its threads,
# and waking the threads costs more than small kernels do. A kernel that is large enough is still split over the cores.
IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

OPTIONS = {
    # LLVM's -O1. Rollouts compile in 10 to 20 % less time than with the default, -O2, and updates in 5 % less; they run
    # as fast (three environments with batches of 8 and 1024, jaxlib 0.10.2), because XLA emits loops that are already
    # optimized.
    "xla_backend_optimization_level": "1",
}


def compiler_options(in_order: bool = True) -> dict[str, str]:
    """Return options for `jax.jit`, in a new dict. Options that this version of XLA does not know are left out.

    Args:
      in_order: whether kernels run one after the other, which is faster if they are small.
    """
    return dict(_compiler_options(platform(), in_order))


@functools.cache
def _compiler_options(platform: str, in_order: bool) -> dict[str, str]:
    if platform != "cpu":
        return {}
    options = {**OPTIONS, **(IN_ORDER if in_order else {}), **guard()}
    if _are_known(options):
        return options
    return {name: value for name, value in options.items() if _are_known({name: value})}


def guarded_jit(function: Callable[..., Result], *, static_argnums: tuple[int, ...] = ()) -> Callable[..., Result]:
    """`jax.jit` with no option but the guard, if this jaxlib needs it. The options are made in the first call, because
    JAX begins to run when it is asked for its devices. Inside of another compiled function, that one's options hold.
    """
    inner = jax.jit(function, static_argnums=static_argnums)

    @functools.cache
    def compiled(default_device: jax.Device | str | None) -> Callable[..., Result]:
        options = guard() if platform() == "cpu" else None
        return jax.jit(function, static_argnums=static_argnums, compiler_options=options)

    @functools.wraps(function)
    def call(*arguments: object) -> Any:
        if is_tracing():
            return inner(*arguments)
        return compiled(config.jax_default_device)(*arguments)

    vars(call)["compiled"] = compiled
    return call


def _are_known(options: dict[str, str]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
