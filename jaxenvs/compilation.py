"""Whether JAX can run in this process, and the options with which XLA compiles programs for a CPU."""

from __future__ import annotations

import functools
import os

import jax

from jaxenvs.jax_names import has_run

_ran_before_fork = False
_is_orphaned = False


def is_usable() -> bool:
    """Whether programs of JAX can run here: not in a process forked from one in which JAX had run."""
    return not _is_orphaned


def require_usable() -> None:
    """Refuse to run where a program of JAX would wait for ever: in a process forked from one in which JAX had run.

    Raises:
      RuntimeError: this is such a process.
    """
    if _is_orphaned:
        raise RuntimeError(
            "JAX ran in the process that this process was forked from. Its threads do not exist here, so any compiled "
            'function would hang: start processes with the method "spawn" or "forkserver".'
        )


def _before_fork() -> None:
    # Here and not in the child, where a thread that is gone may hold the lock that this takes.
    global _ran_before_fork
    _ran_before_fork = bool(has_run())


def _after_fork() -> None:
    global _is_orphaned
    _is_orphaned = _is_orphaned or _ran_before_fork


if hasattr(os, "register_at_fork"):  # where there is no fork, nothing can be forked
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)

# One kernel after the other. By default XLA hands kernels that do not depend on each other to its threads, and waking
# these costs more than small kernels do. A kernel that is large enough is still split over the cores.
IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

OPTIONS = {
    # LLVM's -O1. Rollouts compile in a tenth to a fifth less time than with the default, -O2, and updates in a
    # twentieth less; they run as fast (three environments with 8 and 1024 lanes, jaxlib 0.10.2), because XLA emits
    # loops optimised already.
    "xla_backend_optimization_level": "1",
}


def compiler_options(in_order: bool = True) -> dict[str, str]:
    """Options for `jax.jit`, in a dict of the caller's own. Those that this version of XLA does not know are left out.

    Args:
      in_order: whether kernels run one after the other, which is faster if they are small.
    """
    return dict(_compiler_options(in_order))


@functools.cache
def _compiler_options(in_order: bool) -> dict[str, str]:
    if jax.default_backend() != "cpu":
        return {}
    options = {**OPTIONS, **IN_ORDER} if in_order else OPTIONS
    if _are_known(options):
        return options
    return {name: value for name, value in options.items() if _are_known({name: value})}


def _are_known(options: dict[str, str]) -> bool:
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0).compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
