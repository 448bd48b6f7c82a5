"""Options with which XLA compiles programs for a CPU."""

from __future__ import annotations

import functools

import jax


@functools.cache
def in_order() -> dict[str, str]:
    """Compiler options with which a program runs one kernel after the other on a CPU: for `jax.jit`.

    By default XLA hands kernels that do not depend on each other to its threads, and waking these costs more than the
    kernels of small programs do. A kernel that is large enough is still split over the cores.
    """
    options = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(0).compile()
    except jax.errors.JaxRuntimeError:  # this version of XLA has no such option
        return {}
    return options
