"""Process-wide settings that `import bridge` changes, and how to keep your own.

`import bridge` sets two options, unless the variable named here is set in the environment:

* JAX_CPU_ENABLE_ASYNC_DISPATCH, to false. On a CPU, JAX hands every compiled function to another thread, which costs
  more than a step of a small VecEnv takes. The VecEnv waits for each of its steps anyway, so they run in the calling
  thread. JAX reads this once, when it first runs something: if that was before the import, steps take about 25 µs
  longer.
* XLA_PYTHON_CLIENT_PREALLOCATE, to false. PyTorch and JAX share a GPU: JAX takes memory as it needs it, not three
  quarters of it at the start.

Models and vectorized environments keep compiled functions on disk: see `jaxenvs.compilation.cache`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import jax

from jaxenvs.jax_names import config, has_run, setting

P = ParamSpec("P")
R = TypeVar("R")

# JAX's settings that check or slow down users' code, as our own functions need them: they promote and broadcast on
# purpose, take NumPy arrays, and are compiled.
OWN_SETTINGS: dict[str, tuple[object, Callable[..., contextlib.AbstractContextManager[None]]]] = {
    "jax_numpy_dtype_promotion": ("standard", jax.numpy_dtype_promotion),
    "jax_numpy_rank_promotion": ("allow", jax.numpy_rank_promotion),
    "jax_transfer_guard_host_to_device": ("allow", jax.transfer_guard_host_to_device),
    "jax_disable_jit": (False, jax.disable_jit),
}


def set_up_process() -> None:
    """Set the options that the module's docstring describes."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    is_chosen = "JAX_CPU_ENABLE_ASYNC_DISPATCH" in os.environ or not setting("jax_cpu_enable_async_dispatch")
    if is_chosen or has_run():
        return
    config.update("jax_cpu_enable_async_dispatch", False)


def with_own_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with OWN_SETTINGS, whatever a user has set. A decorator."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # Reading takes 0.1 us each, a context up to 250.
        others = [each for name, each in OWN_SETTINGS.items() if getattr(jax.config, name) not in (each[0], None)]
        if not others:
            return function(*args, **kwargs)
        with contextlib.ExitStack() as settings:
            for value, context in others:
                settings.enter_context(context(value))
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """Keep PyTorch's optimizers from importing `torch._dynamo` in this context.

    That import takes longer than the import of PyTorch itself, and 80 MB. An optimizer does it to hide some of its
    methods from `torch.compile`. None of our own code compiles an optimizer, and after the context the methods are
    hidden as before. Where dynamo is imported already, nothing changes.
    """
    from torch.optim import Optimizer

    methods = [getattr(Optimizer, name) for name in ("add_param_group", "state_dict", "load_state_dict", "zero_grad")]
    # What the decorator of these methods looks for, and otherwise imports dynamo to make (torch/_compile.py).
    plain = [method.__wrapped__ for method in methods if hasattr(method, "__wrapped__")]
    ours = [] if "torch._dynamo" in sys.modules else [each for each in plain if not hasattr(each, "__dynamo_disable")]
    for each in ours:
        each.__dynamo_disable = each
    try:
        yield
    finally:
        for each in ours:
            vars(each).pop("__dynamo_disable", None)  # two threads may have set it, of which one is first here
