"""One training over several devices: a mesh of devices, what is divided over it, and sums and means over the devices.

Each device has its part of the environments, and its part of each minibatch. Parameters, moments and statistics are the
same on all devices, because gradients and statistics are averaged over all devices before they are used. Inside
compiled functions the devices are a named axis, as of `jax.vmap` and `jax.shard_map`; without one, and over one device,
the functions here add nothing to the compiled function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxenvs import arguments
from jaxenvs.arrays import is_key, key_data, key_impl
from jaxenvs.environment import struct
from jaxenvs.jax_names import is_traced, partition_spec, shard_map

AXIS = "data"

T = TypeVar("T")
lax: Any = jax.lax  # where sums over a named axis have no annotations


def make_mesh(num_devices: int | None = None) -> Mesh:
    """Return a mesh of devices, of all processes, as `train`, `advance` and `sweep` take it.

    Args:
      num_devices: how many, the first of `jax.devices()`; None for all.

    Raises:
      ValueError: there are fewer devices.
    """
    found = jax.devices()
    number = len(found) if num_devices is None else arguments.positive_int("num_devices", num_devices)
    if number > len(found):
        raise ValueError(
            f"num_devices must be at most {len(found)}, the number of devices that JAX has here, got {number}."
        )
    return Mesh(np.array(found[:number]), (AXIS,))


def require_mesh(mesh: Mesh) -> Mesh:
    """Return the mesh with an axis over which JAX shards nothing automatically, if it has one axis."""
    arguments.instance("mesh", mesh, Mesh, "a jax.sharding.Mesh, as learn.make_mesh returns it")
    if len(mesh.axis_names) != 1:
        raise ValueError(f"mesh must have one axis, got {mesh.axis_names}.")
    return Mesh(mesh.devices, mesh.axis_names)  # drops the types of its axes


def require_divisible(name: str, number: int, num_devices: int) -> None:
    """Raise unless `number` is a multiple of the number of devices."""
    if number % num_devices:
        raise ValueError(f"{name} must be a multiple of the {num_devices} devices of the mesh, got {number}.")


# --- Inside compiled functions ----------------------------------------------------------------------------------------


def axis_size(axis_name: str | None) -> int:
    """Return the number of devices: a Python int, also in traced code."""
    return 1 if axis_name is None else int(lax.psum(1, axis_name))


def psum(tree: T, axis_name: str | None) -> T:
    """Sum over all devices."""
    return tree if axis_size(axis_name) == 1 else lax.psum(tree, axis_name)


def all_gather(tree: T, axis: int, axis_name: str | None) -> T:
    """Return the parts of all devices, joined along an axis in the order of the devices."""
    if axis_size(axis_name) == 1:
        return tree
    tree = jax.lax.all_gather(tree, axis_name, axis=axis, tiled=True)
    return tree


def pmean(tree: T, axis_name: str | None) -> T:
    """Average over all devices."""
    return tree if axis_size(axis_name) == 1 else lax.pmean(tree, axis_name)


def all_of(flag: jax.Array, axis_name: str | None) -> jax.Array:
    """Return whether the flag holds on all devices.

    A condition that decides how often values are summed over devices must be the same on all devices, or they wait for
    each other forever.
    """
    if axis_size(axis_name) == 1:
        return flag
    least: jax.Array = lax.pmin(flag.astype(jnp.int32), axis_name)
    return least > 0


def mean(x: jax.Array, axis: int | None, axis_name: str | None, keepdims: bool = False) -> jax.Array:
    """Return the mean along an axis, over all devices together."""
    return pmean(x.mean(axis, keepdims=keepdims), axis_name)


def var(x: jax.Array, axis: int | None, axis_name: str | None, ddof: int = 0, keepdims: bool = False) -> jax.Array:
    """Return the variance along an axis, over all devices together."""
    if (size := axis_size(axis_name)) == 1:
        return x.var(axis, ddof=ddof, keepdims=keepdims)
    centred = x - mean(x, axis, axis_name, keepdims=True)
    number = size * (x.size if axis is None else x.shape[axis])
    return mean(centred**2, axis, axis_name, keepdims) * (number / (number - ddof))


def std(x: jax.Array, axis: int | None, axis_name: str | None, ddof: int = 0, keepdims: bool = False) -> jax.Array:
    """Return the standard deviation along an axis, over all devices together."""
    if axis_size(axis_name) == 1:
        return x.std(axis, ddof=ddof, keepdims=keepdims)
    return jnp.sqrt(var(x, axis, axis_name, ddof, keepdims))


def own_key(key: jax.Array, axis_name: str | None) -> jax.Array:
    """Derive a different key on each device."""
    return key if axis_size(axis_name) == 1 else jax.random.fold_in(key, jax.lax.axis_index(axis_name))


# --- Around compiled functions ----------------------------------------------------------------------------------------


def layouts(mesh: Mesh) -> tuple[PartitionSpec, PartitionSpec]:
    """Return two specs: for a leading axis (of environments or devices) divided over the mesh, and for no division."""
    return partition_spec(mesh.axis_names[0]), partition_spec()


def layout_behind(mesh: Mesh, num_axes: int = 1) -> PartitionSpec:
    """Return the spec for arrays that have `num_axes` axes, as of steps, before the axis of environments."""
    return partition_spec(*[None] * num_axes, mesh.axis_names[0])


def on_each(function: Callable[..., T], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., T]:
    """Return a function that runs `function` on each device, with the device's parts of the arguments."""
    return shard_map(function, mesh, in_specs, out_specs)


def run_on(mesh: Mesh | None, function: Callable[..., T], out_specs: Any, *given: object) -> T:
    """Call a function on each device of a mesh, with the device's parts of the arguments; or once, without a mesh.

    Args:
      out_specs: a prefix of the function's result.
      given: the arguments. Arguments with a method `layout(sharded, same)` are divided: it returns a prefix of the
        argument, with `sharded` where leaves have a leading axis of environments. All others are the same on all
        devices. If an argument has `of_one_device(mesh)`, the function gets its result, given the device's part.
    """
    if mesh is None:
        return function(*given)
    sharded, same = layouts(mesh)

    def on_one(*parts: object) -> T:
        return function(*(part.of_one_device(mesh) if hasattr(part, "of_one_device") else part for part in parts))

    in_specs = tuple(each.layout(sharded, same) if hasattr(each, "layout") else same for each in given)
    return on_each(on_one, mesh, in_specs, out_specs)(*given)


@struct
class Sharded:
    """Pytree of arrays with a leading axis of environments, for `run_on` to divide."""

    tree: Any

    def layout(self, sharded: PartitionSpec, same: PartitionSpec) -> PartitionSpec:
        """Return `sharded`, because all leaves have a leading axis of environments."""
        return sharded


def place(tree: T, specs: Any, mesh: Mesh) -> T:
    """Copy a pytree to the devices of a mesh; traced leaves, and leaves that are already there, stay as they are.

    All processes call it, and the values come from the first process.

    Args:
      tree: a pytree of arrays, NumPy arrays or numbers.
      specs: a prefix of the tree, with a PartitionSpec for each leaf below it.
      mesh: the devices, as `make_mesh` returns them.
    """
    leaves, structure = jax.tree.flatten(tree)
    shardings = [NamedSharding(mesh, spec) for spec in jax.tree.leaves(jax.tree.broadcast(specs, tree))]
    is_there = [
        is_traced(leaf) or (isinstance(leaf, jax.Array) and leaf.sharding == sharding)
        for leaf, sharding in zip(leaves, shardings)
    ]
    # Copy, because donating an array that shares its memory with another would invalidate both.
    values = [None if there else np.array(key_data(leaf)) for leaf, there in zip(leaves, is_there)]
    if jax.process_count() > 1 and not all(is_there):
        values = multihost_utils.broadcast_one_to_all(values)

    def placed(leaf: Any, value: np.ndarray | None, sharding: NamedSharding) -> Any:
        if value is None:
            return leaf
        value = np.asarray(value)
        array = jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
        return jax.random.wrap_key_data(array, impl=key_impl(leaf)) if is_key(leaf) else array

    tree = jax.tree.unflatten(structure, [placed(*each) for each in zip(leaves, values, shardings)])
    return tree


def gather(state: T) -> T:
    """Copy a state to the memory of each host, as a training without a mesh has it. All processes call it.

    Use it to save a state with `jaxenvs.arrays.to_arrays`, or to continue with it elsewhere.

    Args:
      state: of a Training over a mesh, or of one without; or any pytree of JAX arrays.
    """

    def gather_leaf(leaf: jax.Array) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(gather_leaf(jax.random.key_data(leaf)), impl=key_impl(leaf))
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.array(leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    state = jax.tree.map(gather_leaf, state)
    return state


def largest(*numbers: int) -> list[int]:
    """Return the maximum of each number over all processes, so that all decide alike. All processes call it."""
    if jax.process_count() == 1:
        return list(numbers)
    told = multihost_utils.process_allgather(np.array(numbers, np.int32))
    return [int(number) for number in np.max(told, 0)]


def is_first_process() -> bool:
    """Return whether this is the process that prints and writes for all."""
    return jax.process_index() == 0
