"""Small loops over numbers on an NVIDIA GPU: all rounds in one kernel of Pallas, a lane to a thread.

`vmap` makes some dozen kernels of a round, each of which reads and writes all numbers of all lanes, and a step has 180
rounds. In a kernel of its own a lane's numbers stay in registers from the first round to the last. What it computes is
traced from the functions that everybody else uses.

It has not been run on a GPU yet, so it has to be asked for: JAXENVS_PALLAS=1 in the environment. Where it cannot be
compiled, `vmap` does it, as it does without.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

VARIABLE = "JAXENVS_PALLAS"
LANES = 32  # of a program: a warp, so that few lanes are spread over as many multiprocessors as there are


def is_asked_for() -> bool:
    """Whether the environment asks for kernels, and JAX runs on a GPU."""
    return os.environ.get(VARIABLE) == "1" and jax.default_backend() == "gpu"


def in_registers(function: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """`plain`, whose lanes `vmap` gives to a kernel of `function` where kernels are asked for.

    Args:
      function: the same for a kernel, see `one_kernel`.
    """
    if not is_asked_for():
        return plain
    call: Any = custom_vmap(plain)

    def batch(size: int, is_batched: Any, *arguments: Any) -> Any:
        arguments = jax.tree.map(
            lambda leaf, given: leaf if given else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))),
            arguments,
            tuple(is_batched),
        )
        results = of_lanes(function, jax.vmap(plain))(*arguments)
        return results, jax.tree.map(lambda _: True, results)

    call.def_vmap(batch)
    differentiable: Any = jax.custom_jvp(call)  # as custom_vmap has no gradient
    differentiable.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    wrapped: Callable[..., Any] = differentiable
    return wrapped


def of_lanes(function: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of `function` where kernels are asked for and it can be compiled, else `plain`: both of many lanes."""
    kernel = one_kernel(function)

    def call(*arguments: Any) -> Any:
        if not is_asked_for() or not _compiles(kernel, arguments):
            return plain(*arguments)
        # A program for the CPU of a machine with a GPU has `plain`.
        return jax.lax.platform_dependent(*arguments, cuda=kernel, default=plain)

    return call


def one_kernel(function: Callable[..., Any], interpret: bool = False) -> Callable[..., Any]:
    """`function` for many lanes, the first axis of each array, in one kernel.

    Args:
      function: from pytrees of numbers to pytrees of numbers, which are those of several lanes, (LANES,), in a kernel.
        Of a table it gets the list of its rows, and may return such a list: registers have no addresses.
      interpret: run on any device, as operations of XLA.
    """

    def call(*arguments: Any) -> Any:
        # Here, for those who ask: it takes time to import, and JAX 0.12 says that it will go.
        from jax.experimental import pallas
        from jax.experimental.pallas import triton

        def block(leaf: Any) -> pallas.BlockSpec:
            if len(leaf.shape) == 1:
                return pallas.BlockSpec((LANES,), lambda program: (program,))
            return pallas.BlockSpec((leaf.shape[0], LANES), lambda program: (0, program))

        lanes = jax.tree.leaves(arguments)[0].shape[0]
        missing = -lanes % LANES  # made up by zeros
        given, structure = jax.tree.flatten(arguments)
        given = [jnp.pad(jnp.moveaxis(leaf, 0, -1), [(0, 0)] * (leaf.ndim - 1) + [(0, missing)]) for leaf in given]
        flags = [leaf.dtype == bool for leaf in given]  # in memory they are numbers
        given = [leaf.astype(jnp.int32) if flag else leaf for leaf, flag in zip(given, flags, strict=True)]

        def compute(*values: Any) -> Any:
            values = tuple(_map(lambda x: x != 0, v) if flag else v for v, flag in zip(values, flags, strict=True))
            return function(*jax.tree.unflatten(structure, values))

        one = [_map(lambda leaf: _shape((LANES,), leaf.dtype), _rows_of(leaf)) for leaf in given]
        shapes, returned = jax.tree.flatten(jax.eval_shape(compute, *one), is_leaf=_is_table)

        def kernel(*refs: Any) -> None:
            results = jax.tree.leaves(compute(*map(_load, refs[: len(given)])), is_leaf=_is_table)
            for ref, result in zip(refs[len(given) :], results, strict=True):
                _store(ref, result)

        outputs = [
            _shape((len(x), lanes + missing), x[0].dtype) if _is_table(x) else _shape((lanes + missing,), x.dtype)
            for x in shapes
        ]
        found = pallas.pallas_call(
            kernel,
            out_shape=outputs,
            grid=((lanes + missing) // LANES,),
            in_specs=[block(leaf) for leaf in given],
            out_specs=[block(leaf) for leaf in outputs],
            compiler_params=triton.CompilerParams(num_warps=LANES // 32),
            interpret=interpret,
            name="in_registers",
        )(*given)
        return jax.tree.unflatten(returned, [jnp.moveaxis(leaf[..., :lanes], -1, 0) for leaf in found])

    return call


def _compiles(kernel: Callable[..., Any], arguments: Any) -> bool:
    """Whether this device has the kernel: an error would come when the program around it is compiled, too late."""
    shapes = jax.tree.map(lambda leaf: _shape(leaf.shape, leaf.dtype), arguments)
    try:
        jax.jit(kernel).lower(*shapes).compile()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"{VARIABLE}: no kernel was compiled, vmap does it: {reason}", stacklevel=2)
        return False
    return True


def _shape(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _is_table(value: Any) -> bool:
    return isinstance(value, list)


def _map(function: Callable[..., Any], value: Any) -> Any:
    return [function(row) for row in value] if _is_table(value) else function(value)


def _rows_of(leaf: jax.Array) -> Any:
    return leaf if leaf.ndim == 1 else list(leaf)


def _load(ref: Any) -> Any:
    return ref[...] if len(ref.shape) == 1 else [ref[row, :] for row in range(ref.shape[0])]


def _store(ref: Any, value: Any) -> None:
    if not _is_table(value):
        ref[...] = value
        return
    for row, each in enumerate(value):
        ref[row, :] = each
