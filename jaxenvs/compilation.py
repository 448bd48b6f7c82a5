"""Options with which XLA compiles programs for a CPU."""

from __future__ import annotations

import functools

import jax

# One kernel after the other. By default XLA hands kernels that do not depend on each other to its threads, and waking
# these costs more than small kernels do. A kernel that is large enough is still split over the cores.
IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

OPTIONS = {
    # LLVM's -O1. Rollouts compile in a tenth to a fifth less time than with the default, -O2, and updates in a
    # twentieth less; they run as fast (three environments with 8 and 1024 lanes, jaxlib 0.10.2), because XLA emits
    # loops optimised already.
    "xla_backend_optimization_level": "1",
}


@functools.cache
def compiler_options(in_order: bool = True) -> dict[str, str]:
    """For `jax.jit`. Those that this version of XLA does not know are left out.

    Args:
      in_order: whether kernels run one after the other, which is faster if they are small.
    """
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
