"""Gradient steps on parameters that are concatenated to one vector.

An optimizer treats every array of a network alike. On one vector it is one kernel instead of a dozen, and for the small
networks of reinforcement learning that saves a third of a gradient step. A tuple of arrays is left apart.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from jaxenvs.compilation.default_device import platform
from jaxenvs.learn.devices import pmean
from jaxenvs.learn.interfaces import Real

# Adam as Stable-Baselines3 sets it. As in all optimizers here, the learning rate is left out:
# `apply_gradients` multiplies by it.
ADAM = optax.scale_by_adam(eps=1e-5)

T = TypeVar("T")

# From this many weights on, JAX must not concatenate gradients, as it does from 0.11.1 on. Below, it takes as long.
LONG = 2**16
# From this many weights on, PPO's minibatches take less time on separate arrays: a tenth with 128-128 units, a fifth
# with 256-256. With 64-64 they take a third more.
LARGE = 30_000


def ravel(params: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Concatenate a pytree of arrays of one dtype to a vector; also return the inverse. Both are differentiable.

    A tuple stays as it is: the parts of a vector that is long.
    """
    if isinstance(params, tuple):
        return params, lambda params: params
    leaves, structure = jax.tree.flatten(params)
    shapes = [leaf.shape for leaf in leaves]
    sizes = [math.prod(shape) for shape in shapes]

    def unravel(vector: jax.Array) -> Any:
        parts = split(vector, tuple(sizes))
        return jax.tree.unflatten(structure, [part.reshape(shape) for part, shape in zip(parts, shapes)])

    return jnp.concatenate([leaf.ravel() for leaf in leaves]), unravel


def apart(params: Any, state: Any) -> tuple[Any, Any, Callable[[Any], Any], Callable[[Any], tuple[Any, Any]]]:
    """Return parameters and the state of their optimizer as many gradient steps should have them.

    Of a large network on a CPU, its arrays stay apart: XLA would copy each out of the vector before it multiplies it.

    Args:
      params: a pytree.
      state: of an optimizer of the vector that `ravel` makes of it.

    Returns:
      The parameters and the state; the function from these parameters to the pytree; and one from both to the pytree
        and the state of the vector.
    """
    vector, unravel = ravel(params)
    if isinstance(vector, tuple) or vector.size < LARGE or platform() != "cpu":
        return vector, state, unravel, lambda both: (unravel(both[0]), both[1])
    structure: Any = jax.tree.structure(state)
    trees = jax.tree.map(lambda leaf: unravel(leaf) if leaf.shape == vector.shape else leaf, state)

    def back(both: tuple[Any, Any]) -> tuple[Any, Any]:
        leaves = [leaf if isinstance(leaf, jax.Array) else ravel(leaf)[0] for leaf in structure.flatten_up_to(both[1])]
        return both[0], structure.unflatten(leaves)

    return params, trees, lambda params: params, back


def split(vector: jax.Array, sizes: tuple[int, ...], starts: tuple[int, ...] | None = None) -> tuple[jax.Array, ...]:
    """Split a vector like `jax.lax.split`, with another gradient.

    JAX's gradient is a concatenation, into which XLA's CPU backend fuses the computation of its parts, element by
    element. Writing the parts to their places one after the other takes less time, above all with long
    vectors. Barriers do not help, because XLA removes them before it fuses.

    Args:
      starts: where the parts begin, in ascending order, if there are gaps between them; else they are end to end. The
        gradient of a gap is 0.
    """
    return _split(vector, sizes, starts, vector.shape[0])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _split(
    vector: jax.Array, sizes: tuple[int, ...], starts: tuple[int, ...] | None, length: int
) -> tuple[jax.Array, ...]:
    if starts is None:
        return tuple(jax.lax.split(vector, sizes))
    return tuple(jax.lax.slice(vector, (start,), (start + size,)) for start, size in zip(starts, sizes, strict=True))


def _split_fwd(
    vector: jax.Array, sizes: tuple[int, ...], starts: tuple[int, ...] | None, length: int
) -> tuple[tuple[jax.Array, ...], None]:
    return _split(vector, sizes, starts, length), None


def _join(
    sizes: tuple[int, ...], starts: tuple[int, ...] | None, length: int, _: None, parts: tuple[jax.Array, ...]
) -> tuple[jax.Array]:
    if starts is None:
        starts = tuple(itertools.accumulate(sizes, initial=0))[:-1]
    if platform() != "cpu":
        return (_concatenate(sizes, starts, length, parts),)
    vector = jnp.zeros(length, parts[0].dtype)
    # The largest part, a product, comes first: XLA would recompute a part that is written first and is a sum over a
    # batch for every element of the vector, which took 6 of the 31 us of an update of DQN.
    ordered = sorted(zip(starts, parts), key=lambda each: -each[1].size)
    zero: int | jax.Array = 0
    if jax.__version_info__ >= (0, 11) and length >= LONG:
        # It makes a concatenation of updates at constant places, and computes a sum over a batch for every element
        # again, which takes several times as long. It does not know that this is 0.
        zero = (ordered[0][1][0] > jnp.inf).astype(jnp.int32)
    for start, part in ordered:
        vector = jax.lax.dynamic_update_slice(vector, part, (start + zero,))
    return (vector,)


def _concatenate(sizes: tuple[int, ...], starts: tuple[int, ...], length: int, parts: tuple[jax.Array, ...]) -> Any:
    """Concatenate parts, with zeros in the gaps between them."""
    pieces, end = [], 0
    for start, size, part in zip(starts, sizes, parts, strict=True):
        pieces += [jnp.zeros(start - end, part.dtype)] * (start > end) + [part]
        end = start + size
    return jnp.concatenate([*pieces, *[jnp.zeros(length - end, parts[0].dtype)] * (length > end)])


_split.defvjp(_split_fwd, _join)


def apply_gradients(
    optimizer: optax.GradientTransformation,
    learning_rate: Any,
    max_grad_norm: Real | None,
    params: T,
    state: Any,
    gradient: T,
    axis_name: str | None = None,
) -> tuple[T, Any]:
    """Apply gradients: take one optimizer step, after scaling the gradient down to the norm `max_grad_norm`, if given.

    With several devices, the gradient is the mean over them. The 1e-6 is PyTorch's (`clip_grad_norm_`), and so part of
    what Stable-Baselines3 computes.
    """
    gradient = pmean(gradient, axis_name)
    if max_grad_norm is not None:
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient)))
        scale = jnp.minimum(1, max_grad_norm / (norm + 1e-6))
        gradient = jax.tree.map(lambda leaf: leaf * scale, gradient)
    direction, state = optimizer.update(gradient, state, params)
    return jax.tree.map(lambda leaf, step: leaf - learning_rate * step, params, direction), state
