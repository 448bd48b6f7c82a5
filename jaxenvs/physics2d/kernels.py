"""Compilation of small loops over numbers for a CPU: as one kernel each, and for a few batch elements at once.

A step is 180 rounds of some hundred dependent operations on a few numbers, and most other work concerns only a few
elements of the batch: one in fifty touches the ground, fewer hit it in the middle of a step. By itself, `vmap` makes a
hundred small kernels of a round, recomputes shared values in several of them, and lets all elements pay for what one
needs. Three measures help:

* `once`: values that many outputs need are computed once.
* one kernel for the whole loop, over blocks of 64 elements, whose numbers stay in the first-level cache (`in_blocks`).
* one element after the other where they differ (`one_by_one`): then branches are real branches, and loops end when
  they are done.

On other devices than a CPU, plain `vmap` is used: all elements do all that any of them needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental.xla_metadata import set_xla_metadata

from jaxenvs.compilation.default_device import platform

Result = TypeVar("Result")

BLOCK = 64  # batch elements whose joints are solved together


def once(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return `function` with results that XLA computes once, instead of fusing it into every operation using them."""
    return _as_a_call(function, inlineable=False)


def one_kernel(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return `function` as one kernel, which saves starting a kernel for each operation of its loops."""
    # A call within the call: XLA (jaxlib 0.10) aborts if such a kernel has an unused argument.
    return _as_a_call(once(function), inlineable=False, xla_cpu_small_call=True)


def one_by_one(function: Callable[..., Result], tangents: Callable[..., Result] | None = None) -> Callable[..., Result]:
    """Return `function` such that `vmap` calls it for one batch element after the other.

    Args:
      tangents: an equivalent function for differentiation: `while_loop` has no gradient.
    """
    return _differentiable(_batched(function, None, jax.vmap(function)), tangents or function)


def in_blocks(
    function: Callable[..., Result], batch_last: bool = False, work: Callable[..., jax.Array] | None = None
) -> Callable[..., Result]:
    """Return `function` such that `vmap` calls it for one block of batch elements after the other.

    Args:
      batch_last: whether `function` itself accepts a batch, whose axis is the last of each array. Use it where a loop
        is as long as the longest element needs: `vmap` would look up a separate index for each element.
      work: from the arguments to the amount of work of each element: elements with similar amounts are put into one
        block, which takes as long as its longest element.
    """
    of_batch = _with_batch_last(function) if batch_last else jax.vmap(function)
    return _differentiable(_batched(function, BLOCK, of_batch, work), function)


def _differentiable(call: Callable[..., Result], function: Callable[..., Result]) -> Callable[..., Result]:
    """Return `call` with the derivatives of `function`, because `custom_vmap` has no gradient."""
    wrapped = jax.custom_jvp(call)
    wrapped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return wrapped


def _with_batch_last(function: Callable[..., Result]) -> Callable[..., Result]:
    def call(*arguments: object) -> Any:
        results = function(*jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), arguments))
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), results)

    return call


def _as_a_call(function: Callable[..., Result], **attributes: bool) -> Callable[..., Result]:
    """Mark a function for XLA:CPU: a call with these attributes is neither inlined nor split into many kernels."""

    @wraps(function)
    def call(*arguments: object) -> Any:
        results = jax.jit(function)(*arguments)
        if platform() != "cpu":
            return results
        words = {name: str(value).lower() for name, value in attributes.items()}
        return jax.tree.map(partial(set_xla_metadata, **words), results)

    return call


def _batched(
    function: Callable[..., Result],
    block: int | None,
    of_batch: Callable[..., Result],
    work: Callable[..., jax.Array] | None = None,
) -> Callable[..., Result]:
    def call_batch(*arguments: object) -> Any:
        if platform() != "cpu":
            return jax.vmap(function)(*arguments)
        number = jax.tree.leaves(arguments)[0].shape[0]
        if number == 1:  # no loop: XLA (jaxlib 0.10) aborts when it compiles some loops of a single iteration
            results = one_kernel(function)(*jax.tree.map(lambda leaf: leaf[0], arguments))
            return jax.tree.map(lambda leaf: leaf[None], results)
        if block is None:
            return one_kernel(lambda *batch: jax.lax.map(lambda element: function(*element), batch))(*arguments)
        of_all = one_kernel(lambda *batch: _map_blocks(of_batch, batch, number, min(block, number)))
        if work is None or number <= block:
            return of_all(*arguments)
        order = jnp.argsort(work(*arguments))
        results = of_all(*jax.tree.map(lambda leaf: leaf[order], arguments))
        back = jnp.argsort(order)
        return jax.tree.map(lambda leaf: leaf[back], results)

    # A batch of batches is a larger batch.
    batched: Any = custom_vmap(call_batch)

    def batch_of_batches(size: int, is_batched: Iterable[bool], *arguments: object) -> Any:
        arguments = _all_batched(size, is_batched, arguments)
        number = jax.tree.leaves(arguments)[0].shape[1]
        flat = jax.tree.map(lambda leaf: leaf.reshape(size * number, *leaf.shape[2:]), arguments)
        results = jax.tree.map(lambda leaf: leaf.reshape(size, number, *leaf.shape[1:]), batched(*flat))
        return results, jax.tree.map(lambda _: True, results)

    batched.def_vmap(batch_of_batches)

    alone: Any = custom_vmap(one_kernel(function))

    def batch(size: int, is_batched: Iterable[bool], *arguments: object) -> Any:
        results = batched(*_all_batched(size, is_batched, arguments))
        return results, jax.tree.map(lambda _: True, results)

    alone.def_vmap(batch)
    call: Callable[..., Result] = alone
    return call


def _all_batched(size: int, is_batched: Iterable[bool], arguments: tuple[Any, ...]) -> Any:
    return jax.tree.map(
        lambda leaf, given: leaf if given else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))),
        arguments,
        tuple(is_batched),
    )


def _map_blocks(function: Callable[..., Any], arguments: tuple[Any, ...], number: int, block: int) -> Any:
    blocks = -(-number // block)
    if blocks == 1:
        return function(*arguments)
    missing = blocks * block - number  # filled up with copies of the first elements

    def divide(leaf: jax.Array) -> jax.Array:
        return jnp.concatenate([leaf, leaf[:missing]]).reshape(blocks, block, *leaf.shape[1:])

    results = jax.lax.map(lambda batch: function(*batch), jax.tree.map(divide, arguments))
    return jax.tree.map(lambda leaf: leaf.reshape(blocks * block, *leaf.shape[2:])[:number], results)
