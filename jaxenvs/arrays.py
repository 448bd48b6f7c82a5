"""Convert a pytree to a flat dict of arrays, as `numpy.savez(file, **arrays)` takes it, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import instance, is_array, shown
from jaxenvs.jax_names import is_traced


def to_arrays(tree: object) -> dict[str, np.ndarray]:
    """Copy each leaf of a pytree to an array, under its path in the tree; typed keys are stored as their data.

    Raises:
      TypeError: a leaf is not an array or a number, or is traced.
    """
    return {name: np.array(key_data(leaf)) for name, leaf in _named_leaves("tree", tree, is_array).items()}


def from_arrays(like: object, arrays: Mapping[str, Any]) -> Any:
    """Rebuild the pytree that `to_arrays` converted.

    Args:
      like: a pytree of the same structure, shapes and dtypes, of arrays, `jax.ShapeDtypeStruct` or numbers. Leaves that
        are NumPy arrays or numbers in `like` are such in the result; the other leaves become JAX arrays.
      arrays: the result of `to_arrays`, or of `numpy.load`.

    Raises:
      ValueError: arrays are missing, are too many, or do not fit; the message names them.
    """
    instance("arrays", arrays, Mapping, "a mapping of names to arrays, as to_arrays returns it")
    expected = _named_leaves("like", like, lambda leaf: is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct))
    wrong = [f"{name} is missing" for name in expected if name not in arrays]
    wrong += [f"{name} is not expected" for name in arrays if name not in expected]
    found = {}
    for name, leaf in expected.items():
        if name in arrays:
            array = arrays[name] if is_key(arrays[name]) else np.asarray(arrays[name])
            aval = np.asarray(leaf) if isinstance(leaf, OnHost) else jax.eval_shape(key_data, leaf)
            if (
                isinstance(array, np.ndarray)
                and array.dtype.kind == "V"
                and array.dtype.itemsize == aval.dtype.itemsize
            ):
                array = array.view(aval.dtype)  # .npz files store bfloat16 as raw bytes
            if array.shape != aval.shape or array.dtype != aval.dtype:
                wrong.append(f"{name} is {shown(array)}, expected {aval.dtype}{list(aval.shape)}")
            found[name] = array
    if wrong:
        raise ValueError(f"arrays must fit the given structure, but {'; '.join(wrong)}.")
    return jax.tree.unflatten(jax.tree.structure(like), [_like(leaf, found[name]) for name, leaf in expected.items()])


OnHost = np.ndarray | np.generic | bool | int | float | complex


def is_key(leaf: object) -> bool:
    """Return whether a leaf is an array of typed PRNG keys."""
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def key_data(leaf: Any) -> Any:
    """Return the data of typed keys; return any other leaf unchanged."""
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def key_impl(leaf: object) -> Any:
    """Return the implementation of a key whose shape and dtype are known; JAX reports it only for traced keys."""
    impls: list[Any] = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), leaf)
    return impls[0]


def _named_leaves(argument: str, tree: object, is_leaf: Callable[[object], bool]) -> dict[str, Any]:
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        traced = is_traced(leaf)
        if traced or not is_leaf(leaf):
            got = "a tracer" if traced else shown(leaf)
            raise TypeError(f"{argument}{name} must be an array or a number, got {got}.")
        leaves[name or "value"] = leaf
    return leaves


def _like(leaf: object, array: np.ndarray) -> Any:
    if isinstance(leaf, np.ndarray):
        return array.copy()
    if isinstance(leaf, OnHost):
        return type(leaf)(array[()])
    value = jnp.array(array)
    return jax.random.wrap_key_data(value, impl=key_impl(leaf)) if is_key(leaf) else value
