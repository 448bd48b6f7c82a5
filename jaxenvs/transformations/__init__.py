"""Make functions work in every setting and under every transformation of JAX: meshes, `shard_map`, strict promotion."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.sharding import AxisType, NamedSharding, PartitionSpec, auto_axes

from jaxenvs.jax_names import config, varies_over_devices

Function = TypeVar("Function", bound=Callable[..., Any])
Tree = TypeVar("Tree")


def in_any_context(function: Function) -> Function:
    """Decorate a function whose results belong to one environment or one training, on one device or replicated."""
    return _in_any_context(function, is_batched=False)


def batched_in_any_context(function: Function) -> Function:
    """Decorate a function all of whose results have the leading axis of a batch, which may be divided over devices."""
    return _in_any_context(function, is_batched=True)


def varying(tree: Tree, *like: object) -> Tree:
    """Return a pytree whose leaves vary over devices as the leaves of `like` do. Without a mesh: unchanged.

    In `jax.shard_map`, the carry of a loop must have the same types before and after an iteration. A constant does not
    have the type of what is computed from the data of a device.
    """
    arrays = [leaf for leaf in jax.tree.leaves(like) if isinstance(leaf, jax.Array)]
    return _varying(tree, arrays) if any(map(_is_typed, arrays)) else tree


def _varying(tree: Tree, arrays: Sequence[jax.Array]) -> Tree:
    # The flag is False, and XLA removes it. `jnp.where` gives a leaf the type of its condition.
    flag = functools.reduce(jnp.logical_or, [_numbers(array).ravel()[:0].astype(bool).any() for array in arrays])
    marked: Tree = jax.tree.map(lambda leaf: jnp.where(flag, leaf, leaf), tree)
    return marked


def set_or_drop(array: jax.Array, indices: jax.Array, values: jax.typing.ArrayLike) -> jax.Array:
    """Set rows of an array, except where an index is past the end. It has no gradient.

    `checkify` would report the indices past the end, and fails at a batch of scatters.
    """
    return unchecked(_set_or_drop)(array, indices, jnp.asarray(values, array.dtype))


def _set_or_drop(array: jax.Array, indices: jax.Array, values: jax.Array) -> jax.Array:
    return array.at[indices].set(values, mode="drop")


def unchecked(function: Function) -> Function:
    """Hide a function from `checkify`, which does not look into functions with a custom rule for `vmap`."""
    call: Any = custom_vmap(function)

    def batch(size: int, is_batched: Iterable[bool], *args: object) -> tuple[Any, Any]:
        batched = jax.vmap(function, in_axes=jax.tree.map(lambda each: 0 if each else None, tuple(is_batched)))
        results = unchecked(batched)(*args)
        return results, jax.tree.map(lambda _: True, results)

    call.def_vmap(batch)
    return cast(Function, call)


def is_partitioned(array: jax.Array) -> bool:
    """Return whether XLA may divide the array over devices, so that a condition on it needs a sum over devices."""
    mesh = _mesh(array)
    return AxisType.Auto in mesh.axis_types and mesh.size > 1


def _mesh(array: jax.Array) -> Any:
    return jax.typeof(array).sharding.mesh


def _is_typed(array: jax.Array) -> bool:
    """Return whether the type of the array says how it is divided or varies over devices."""
    return AxisType.Explicit in _mesh(array).axis_types or varies_over_devices(array)


def _numbers(array: jax.Array) -> jax.Array:
    return jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def _in_any_context(function: Function, is_batched: bool) -> Function:
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        with _usual_promotion():
            leaves, structure = jax.tree.flatten((args, kwargs))
            places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
            arrays = [leaves[place] for place in places]
            mesh = next((_mesh(array) for array in arrays if _is_typed(array)), None)
            if mesh is None:
                return function(*args, **kwargs)

            def with_varying_results(*arrays: jax.Array) -> Any:
                given = dict(enumerate(leaves)) | dict(zip(places, arrays))
                args, kwargs = jax.tree.unflatten(structure, given.values())
                return _varying(function(*args, **kwargs), arrays)

            if AxisType.Explicit not in mesh.axis_types:
                return with_varying_results(*arrays)
            # Where axes are Explicit, JAX refuses to index, stack and loop over much of what it can divide itself.
            specs = [jax.typeof(array).sharding.spec[:1] for array in arrays if is_batched]
            spec = next((each for each in specs if each != (None,) and each), ())
            sharding = NamedSharding(mesh, PartitionSpec(*spec))  # type: ignore[no-untyped-call]
            return auto_axes(with_varying_results, out_sharding=sharding)(*arrays)

    return cast(Function, call)


@contextlib.contextmanager
def _usual_promotion() -> Iterator[None]:
    """Promote dtypes and ranks as NumPy does: strict settings are for the code of users."""
    with contextlib.ExitStack() as stack:
        # Entering the default would change the keys of JAX's caches.
        if config.jax_numpy_dtype_promotion != "standard":
            stack.enter_context(jax.numpy_dtype_promotion("standard"))
        if config.jax_numpy_rank_promotion != "allow":
            stack.enter_context(jax.numpy_rank_promotion("allow"))
        yield
