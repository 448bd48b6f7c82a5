"""Many trainings in one compiled function: batched on an accelerator, one per CPU core, or divided over devices."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxenvs.arguments import is_array, shown
from jaxenvs.compilation import compiler_options
from jaxenvs.compilation.cache import configure_by_default
from jaxenvs.compilation.default_device import cached_by_device, platform
from jaxenvs.jax_names import block_until_ready, effects_barrier, has_run, setting, shape_struct
from jaxenvs.learn.devices import layouts, on_each, require_mesh
from jaxenvs.learn.progress_bar import one_bar

T = TypeVar("T")
Kinds = tuple[tuple[tuple[int, ...], np.dtype], ...]  # shapes and dtypes


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reserve_threads() -> bool:
    """Let XLA have threads to spare, so that `sweep` can use all cores of a CPU. Call it before JAX runs anything.

    Compiled functions that run side by side wait for each other forever once they have taken all threads of XLA's pool,
    which has one for each core (seen with jaxlib 0.10.2). Its size is read once, from the environment variable
    PJRT_NPROC, when JAX starts. Single functions with large kernels are a tenth slower with more threads than cores, so
    this is opt-in.

    Returns:
      Whether there are enough threads now.
    """
    enough = num_cores() + 2
    if has_run() is False:
        os.environ.setdefault("PJRT_NPROC", str(enough))
        _STARTED_WITH.append(os.environ["PJRT_NPROC"])
    return _can_spread()


# The value of PJRT_NPROC before JAX first ran, as far as is known: if it is set later, it has no effect.
_STARTED_WITH: list[str] = [os.environ["PJRT_NPROC"]] if "PJRT_NPROC" in os.environ else []


def _can_spread() -> bool:
    return any(number.isdigit() and int(number) >= num_cores() + 2 for number in _STARTED_WITH[-1:])


def sweep(function: Callable[..., T], *arguments: object, mesh: Mesh | None = None) -> T:
    """Compute `jax.vmap(function)(*arguments)`, compiled, for functions that run long, as `train` with many keys.

    On a CPU the batch is cut into as many groups as there are cores, and each core takes one element of its group after
    the other: in XLA's CPU backend a batch of small matrix products, which vmap makes, is slower than the single
    products, and runs on one core. That needs `reserve_threads()` before JAX runs anything; without it, `sweep` uses
    one core, and warns.

    Args:
      function: compiled once for each shape of the arguments, if it is the same object. If it calls `train` with
        `progress=True`, there is one progress bar for all.
      arguments: pytrees of arrays with one leading axis for all.
      mesh: devices of this process, as `learn.make_mesh()` returns them, among which the batch is divided. They do not
        communicate, and each CPU device is one core.

    Raises:
      ValueError, TypeError: there is no such axis, or `function` cannot be called.
    """
    return compile_sweep(function, *arguments, mesh=mesh)(*arguments)


def compile_sweep(function: Callable[..., T], *arguments: object, mesh: Mesh | None = None) -> Callable[..., T]:
    """Return the function that `sweep` calls, compiled for arguments of these shapes."""
    if not callable(function):
        raise TypeError(f"function must be callable, got {function!r}.")
    leaves, structure = jax.tree.flatten(arguments)
    for leaf in leaves:
        if not is_array(leaf):
            raise TypeError(f"arguments must be pytrees of arrays, but they contain {shown(leaf)}.")
    shapes = [jnp.shape(leaf) for leaf in leaves]
    sizes = {shape[:1] for shape in shapes}
    if len(sizes) != 1 or sizes == {()} or sizes == {(0,)}:
        raise ValueError(f"arguments must share one leading axis that is not empty, got the shapes {shapes}.")
    kinds = tuple((shape, jnp.result_type(leaf)) for shape, leaf in zip(shapes, leaves))
    configure_by_default()
    x64 = setting("jax_enable_x64")
    if mesh is not None:
        return _compiled_on_devices(function, structure, kinds, require_mesh(mesh), x64)
    return _compiled(function, structure, kinds, num_cores(), x64)


@cached_by_device
def _compiled(
    function: Callable[..., T], structure: jax.tree_util.PyTreeDef, kinds: Kinds, cores: int, x64: bool
) -> Callable[..., T]:
    size = kinds[0][0][0]
    if platform() != "cpu":
        return jax.jit(jax.vmap(function)).lower(*_empty(structure, kinds, size)).compile()
    num_groups = min(cores, size)
    if num_groups > 1 and not _can_spread():
        warnings.warn(
            f"sweep runs on one core. To use all {cores}, call jaxenvs.learn.sweep.reserve_threads() before JAX runs "
            f"anything, or start Python with the environment variable PJRT_NPROC={cores + 2}.",
            stacklevel=4,
        )
        num_groups = 1
    # Pad the last group with the last element, so that all groups have one shape and share a compiled function.
    length = -(-size // num_groups)
    rows = [jnp.minimum(jnp.arange(first, first + length), size - 1) for first in range(0, size, length)]

    def one_by_one(arguments: Any) -> Any:
        return jax.lax.map(lambda each: function(*each), arguments)

    def group(arguments: object, rows: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], arguments)

    in_group = _empty(structure, kinds, length)
    compiled = jax.jit(one_by_one, compiler_options=compiler_options()).lower(in_group).compile()

    def run(*arguments: object) -> Any:
        def run_group(rows: jax.Array) -> Any:
            return block_until_ready(compiled(group(arguments, rows)))

        with ThreadPoolExecutor(len(rows)) as pool, one_bar(len(rows) * length):
            results = list(pool.map(run_group, rows))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:size], *results)

    return run


@functools.lru_cache(maxsize=32)
def _compiled_on_devices(
    function: Callable[..., T], structure: jax.tree_util.PyTreeDef, kinds: Kinds, mesh: Mesh, x64: bool
) -> Callable[..., T]:
    size = kinds[0][0][0]
    divided, _ = layouts(mesh)
    # Pad with the last element, so that all devices have equally many.
    rows = jnp.minimum(jnp.arange(-(-size // mesh.size) * mesh.size), size - 1)

    def each(arguments: Any) -> T:
        return function(*arguments)

    is_cpu = platform() == "cpu"
    some = functools.partial(jax.lax.map, each) if is_cpu else jax.vmap(each)
    num_runs = len(rows) if is_cpu else mesh.size
    jitted = jax.jit(on_each(some, mesh, (divided,), divided), compiler_options=compiler_options())
    compiled = jitted.lower(_empty(structure, kinds, len(rows))).compile()

    def run(*arguments: object) -> Any:
        filled = jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], arguments)
        with one_bar(num_runs):
            results = compiled(jax.device_put(filled, compiled.input_shardings[0][0]))
            effects_barrier()  # a progress bar hears of all
        return jax.tree.map(lambda leaf: leaf[:size], results)

    return run


def _empty(structure: jax.tree_util.PyTreeDef, kinds: Kinds, length: int) -> Any:
    """Return shapes and dtypes of the arguments, with another leading axis."""
    leaves = [shape_struct((length, *shape[1:]), dtype) for shape, dtype in kinds]
    return jax.tree.unflatten(structure, leaves)
