"""One training over several devices: a mesh of them, what is divided over it, and what they tell each other.

Each device has its part of the lanes, and its part of each minibatch. Parameters, moments and statistics are the same
on all, because gradients and statistics are means over all before they are used. Inside of programs the devices are an
axis with a name, as of `jax.vmap` and `jax.shard_map`; without one, and over one device, the functions here add nothing
to a program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxenvs import arguments
from jaxenvs.arrays import is_key, key_data, key_impl
from jaxenvs.environment import struct
from jaxenvs.jax_names import is_traced, shard_map

AXIS = "data"


def make_mesh(num_devices: int | None = None) -> Mesh:
    """So many devices, or all, of all processes, as `train`, `advance` and `sweep` take them.

    Args:
      num_devices: how many, of those of `jax.devices()` in this order; None for all.

    Raises:
      ValueError: there are not so many.
    """
    found = jax.devices()
    number = len(found) if num_devices is None else arguments.positive_int("num_devices", num_devices)
    if number > len(found):
        raise ValueError(
            f"num_devices must be at most {len(found)}, the number of devices that JAX has here, got {number}."
        )
    return Mesh(np.array(found[:number]), (AXIS,))


def require_mesh(mesh: Any) -> Mesh:
    """A mesh of one axis, over which JAX divides nothing by itself.

    Raises:
      TypeError, ValueError: it is no mesh, or has several axes.
    """
    arguments.instance("mesh", mesh, Mesh, "a jax.sharding.Mesh, as learn.make_mesh returns it")
    if len(mesh.axis_names) != 1:
        raise ValueError(f"mesh must have one axis, got {mesh.axis_names}.")
    return Mesh(mesh.devices, mesh.axis_names)  # whatever the types of its axes were


def require_divisible(name: str, number: int, num_devices: int) -> None:
    """
    Raises:
      ValueError: the devices cannot have equal parts of it.
    """
    if number % num_devices:
        raise ValueError(f"{name} must be a multiple of the {num_devices} devices of the mesh, got {number}.")


# --- Inside of programs -----------------------------------------------------------------------------------------------


def axis_size(axis_name: str | None) -> int:
    """How many devices there are: a number, also in traced code."""
    return 1 if axis_name is None else int(jax.lax.psum(1, axis_name))  # type: ignore[no-untyped-call]


def psum(tree: Any, axis_name: str | None) -> Any:
    """Sums over all devices."""
    return tree if axis_size(axis_name) == 1 else jax.lax.psum(tree, axis_name)  # type: ignore[no-untyped-call]


def pmean(tree: Any, axis_name: str | None) -> Any:
    """Means over all devices."""
    return tree if axis_size(axis_name) == 1 else jax.lax.pmean(tree, axis_name)  # type: ignore[no-untyped-call]


def all_of(flag: Any, axis_name: str | None) -> Any:
    """Whether it holds on all devices. What decides how often something is summed up must be the same on all, or they
    wait for each other for ever."""
    if axis_size(axis_name) == 1:
        return flag
    return jax.lax.pmin(flag.astype(jnp.int32), axis_name) > 0  # type: ignore[no-untyped-call]


def mean(x: jax.Array, axis: int | None, axis_name: str | None, keepdims: bool = False) -> jax.Array:
    """The mean of an axis, of all devices together."""
    means: jax.Array = pmean(x.mean(axis, keepdims=keepdims), axis_name)
    return means


def var(x: jax.Array, axis: int | None, axis_name: str | None, ddof: int = 0, keepdims: bool = False) -> jax.Array:
    """The variance of an axis, of all devices together."""
    if (size := axis_size(axis_name)) == 1:
        return x.var(axis, ddof=ddof, keepdims=keepdims)
    centred = x - mean(x, axis, axis_name, keepdims=True)
    number = size * (x.size if axis is None else x.shape[axis])
    return mean(centred**2, axis, axis_name, keepdims) * (number / (number - ddof))


def std(x: jax.Array, axis: int | None, axis_name: str | None, ddof: int = 0, keepdims: bool = False) -> jax.Array:
    """The standard deviation of an axis, of all devices together."""
    if axis_size(axis_name) == 1:
        return x.std(axis, ddof=ddof, keepdims=keepdims)
    return jnp.sqrt(var(x, axis, axis_name, ddof, keepdims))


def own_key(key: jax.Array, axis_name: str | None) -> jax.Array:
    """A key of each device's own."""
    return key if axis_size(axis_name) == 1 else jax.random.fold_in(key, jax.lax.axis_index(axis_name))


@runtime_checkable
class Divisible(Protocol):
    """What devices have parts of."""

    def layout(self, lanes: Any, same: Any) -> Any:
        """Return a prefix of this pytree: `lanes` where leaves have a leading axis of environments, `same` where they
        are the same on all devices."""

    def of_one_device(self, mesh: Mesh) -> Any:
        """Return what one device works with, given its part of each leaf."""


# --- Around programs --------------------------------------------------------------------------------------------------


def layouts(mesh: Mesh) -> tuple[PartitionSpec, PartitionSpec]:
    """Of what has a leading axis of lanes, or of devices, which is divided; and of what is the same on each device."""
    return PartitionSpec(mesh.axis_names[0]), PartitionSpec()  # type: ignore[no-untyped-call]


def layout_behind(mesh: Mesh, num_axes: int = 1) -> PartitionSpec:
    """Of what has so many axes, as of steps, before that of lanes."""
    return PartitionSpec(*[None] * num_axes, mesh.axis_names[0])  # type: ignore[no-untyped-call]


def on_each(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """The function on each device, of its parts of the arguments."""
    return shard_map(function, mesh, in_specs, out_specs)


def run_on(mesh: Mesh | None, function: Callable[..., Any], out_specs: Any, *given: Any) -> Any:
    """Call a function on each device of a mesh, with the device's part of what is given; or once, without a mesh.

    Args:
      out_specs: a prefix of what it returns.
      given: what is Divisible is divided; everything else is the same on all devices.
    """
    if mesh is None:
        return function(*given)
    specs = layouts(mesh)

    def on_one(*parts: Any) -> Any:
        return function(*(part.of_one_device(mesh) if isinstance(part, Divisible) else part for part in parts))

    in_specs = tuple(each.layout(*specs) if isinstance(each, Divisible) else specs[1] for each in given)
    return on_each(on_one, mesh, in_specs, out_specs)(*given)


@struct
class Lanes:
    """A pytree of arrays with a leading axis of environments, for `run_on` to divide."""

    tree: Any

    def layout(self, lanes: Any, same: Any) -> Any:
        """See Divisible."""
        return lanes

    def of_one_device(self, mesh: Mesh) -> Lanes:
        """See Divisible."""
        return self


def place(tree: Any, specs: Any, mesh: Mesh) -> Any:
    """A pytree on the devices of a mesh; traced leaves, and those that are there, as they are. All processes call it,
    and the values are those of the first.

    Args:
      specs: a prefix of the tree.
    """
    leaves, structure = jax.tree.flatten(tree)
    shardings = [NamedSharding(mesh, spec) for spec in _of_leaves(specs, tree)]
    is_there = [
        is_traced(leaf) or (isinstance(leaf, jax.Array) and leaf.sharding == sharding)
        for leaf, sharding in zip(leaves, shardings)
    ]
    # Copies, because an array that shares its memory with another takes that along when it is given away.
    values = [None if there else np.array(key_data(leaf)) for leaf, there in zip(leaves, is_there)]
    if jax.process_count() > 1 and not all(is_there):
        values = multihost_utils.broadcast_one_to_all(values)

    def placed(leaf: Any, value: Any, sharding: NamedSharding) -> Any:
        if value is None:
            return leaf
        value = np.asarray(value)
        array = jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
        return jax.random.wrap_key_data(array, impl=key_impl(leaf)) if is_key(leaf) else array

    return jax.tree.unflatten(structure, [placed(*each) for each in zip(leaves, values, shardings)])


def _of_leaves(prefix: Any, tree: Any) -> list[Any]:
    """What a prefix has for each leaf of a tree."""
    is_spec = lambda node: isinstance(node, PartitionSpec)  # noqa: E731
    whole = jax.tree.map(lambda spec, part: jax.tree.map(lambda _: spec, part), prefix, tree, is_leaf=is_spec)
    return jax.tree.leaves(whole, is_leaf=is_spec)


def gather(tree: Any) -> Any:
    """A pytree of JAX's arrays in the memory of each host, whole. All processes call it."""

    def gather_leaf(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(gather_leaf(jax.random.key_data(leaf)), impl=key_impl(leaf))
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.array(leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(gather_leaf, tree)


def largest(*numbers: int) -> list[int]:
    """The largest of each that any process has, so that all decide alike. All processes call it."""
    if jax.process_count() == 1:
        return list(numbers)
    told = multihost_utils.process_allgather(np.array(numbers, np.int32))
    return [int(number) for number in np.max(told, 0)]


def is_first_process() -> bool:
    """Whether this is the process that prints and writes for all."""
    return jax.process_index() == 0
