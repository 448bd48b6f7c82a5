"""Packing: a pytree of many small arrays as one array, for compiled functions that Python calls in every step."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxenvs.arrays import is_key, key_data, key_impl


class Packed(NamedTuple):
    """The arrays of a pytree: 32-bit and bool arrays concatenated in one uint32 vector, and all others unchanged."""

    words: Any
    rest: list[Any]


class Packing:
    """Packs and unpacks pytrees of one structure.

    Dispatching a compiled function costs time for every array that enters or leaves it, and a step of CartPole has
    thirty arrays: with few environments, dispatch is most of the step.

    Each array of 32-bit numbers is a slice of one uint32 vector, which keeps the bits of its numbers. A bool is a 0 or
    1 in it, and a random key its data. Arrays of other sizes stay as they are.
    """

    def __init__(self, tree: object) -> None:
        """Record the structure, shapes and dtypes of the pytrees to pack.

        Args:
          tree: a pytree of arrays or of `jax.ShapeDtypeStruct`.
        """
        leaves, self.structure = jax.tree.flatten(tree)
        self._key_impls = [key_impl(leaf) if is_key(leaf) else None for leaf in leaves]
        self._leaves = [jax.eval_shape(key_data, leaf) if is_key(leaf) else leaf for leaf in leaves]
        self._in_words = [leaf.dtype.itemsize == 4 or leaf.dtype == bool for leaf in self._leaves]
        ends = np.cumsum([math.prod(leaf.shape) * packed for leaf, packed in zip(self._leaves, self._in_words)])
        self._slices = [slice(end - math.prod(leaf.shape), end) for leaf, end in zip(self._leaves, ends.tolist())]
        self._host_layout = [
            (in_words, leaf.dtype == bool, leaf.shape, _host_dtype(leaf.dtype), 4 * at.start)
            for leaf, at, in_words in zip(self._leaves, self._slices, self._in_words)
        ]

    def fits(self, other: Packing) -> bool:
        """Return whether what `other` packs can be unpacked here: the same structure, shapes and dtypes."""
        if self is other:
            return True
        kinds, others = ([(leaf.shape, leaf.dtype) for leaf in each._leaves] for each in (self, other))
        structure: object = self.structure
        return bool(structure == other.structure) and kinds == others

    def pack(self, tree: object) -> Packed:
        """Return a pytree of this structure as Packed arrays; callable in traced code."""
        leaves = [key_data(leaf) for leaf in jax.tree.leaves(tree)]
        words = [_to_words(leaf) for leaf, packed in zip(leaves, self._in_words) if packed]
        rest = [leaf for leaf, packed in zip(leaves, self._in_words) if not packed]
        return Packed(jnp.concatenate(words) if words else jnp.zeros(0, jnp.uint32), rest)

    def unpack(self, packed: Packed) -> Any:
        """Return the pytree that `pack` packed; callable in traced code."""
        rest = iter(packed.rest)
        leaves = [
            _from_words(packed.words[at].reshape(leaf.shape), leaf.dtype) if in_words else next(rest)
            for leaf, at, in_words in zip(self._leaves, self._slices, self._in_words)
        ]
        keyed = [
            leaf if impl is None else jax.random.wrap_key_data(leaf, impl=impl)
            for leaf, impl in zip(leaves, self._key_impls)
        ]
        return jax.tree.unflatten(self.structure, keyed)

    def unpack_on_host(self, packed: Packed) -> list[np.ndarray]:
        """Return the leaves as writable NumPy arrays in newly allocated memory; keys as their data."""
        words, rest = np.array(packed.words), iter(packed.rest)
        leaves = []
        for in_words, is_bool, shape, dtype, offset in self._host_layout:
            # One call instead of three to slice, view and reshape.
            leaf: np.ndarray = np.ndarray(shape, dtype, words, offset) if in_words else np.array(next(rest))
            leaves.append(leaf != 0 if is_bool else leaf)
        return leaves


def _host_dtype(dtype: npt.DTypeLike) -> np.dtype:
    return np.dtype(np.uint32 if dtype == jnp.bool_ else dtype)


def _to_words(leaf: jax.Array) -> jax.Array:
    if leaf.dtype == bool:
        return leaf.astype(jnp.uint32).ravel()
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32).ravel()


def _from_words(words: jax.Array, dtype: np.dtype) -> jax.Array:
    return words != 0 if dtype == jnp.bool_ else jax.lax.bitcast_convert_type(words, dtype)


class Stacking:
    """Stacks arrays of the same shape, dtype and weak type into one: for the parameters of environments.

    Packing reinterprets bits, which would lose weak types: a weakly typed parameter takes the dtype of the state that
    it is combined with, as a Python number does.
    """

    def __init__(self, leaves: list[jax.Array]) -> None:
        kinds = [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves]
        self._groups = [[i for i, kind in enumerate(kinds) if kind == group] for group in dict.fromkeys(kinds)]
        self._count = len(kinds)

    def stack(self, leaves: list[jax.Array]) -> list[jax.Array]:
        return [jnp.stack([leaves[i] for i in group]) for group in self._groups]

    def unstack(self, stacks: list[jax.Array]) -> list[jax.Array]:
        leaves = {i: stack[row] for stack, group in zip(stacks, self._groups) for row, i in enumerate(group)}
        return [leaves[i] for i in range(self._count)]
