"""Sampling, membership and flattening of Gymnasium's spaces inside traced code.

Spaces are static: they are closed over, and only keys and values are traced. For a batch, use `jax.vmap`:
`jax.vmap(partial(sample, space))(jax.random.split(key, num_envs))`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from jaxenvs.arguments import shown, typed_key
from jaxenvs.jax_names import shape_struct


def _unsupported(space: object) -> TypeError:
    return TypeError(
        f"space must be a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them, got {space!r}."
    )


def leaf_bounds(space: Space[object]) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the greatest member of a space that is neither Dict nor Tuple, element by element."""
    if isinstance(space, Box):
        return space.low, space.high
    if isinstance(space, Discrete):
        return np.asarray(int(space.start)), np.asarray(int(space.start) + int(space.n) - 1)
    if isinstance(space, MultiDiscrete):
        start = space.start.astype(np.int64)  # in an int8 space, start + nvec may pass 127
        return start, start + space.nvec.astype(np.int64) - 1
    if isinstance(space, MultiBinary):
        return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
    raise _unsupported(space)


# --- Sampling -------------------------------------------------------------------------------------------------------


def sample(space: Space[object], key: jax.Array) -> Any:
    """Draw a random member of a space, with the distribution of `space.sample()`.

    Integers are uniform, the greatest included. An element of a Box is uniform where it is bounded, normal where it is
    unbounded, and exponential from its bound where it has one.

    Args:
      space: a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them.
      key: a typed key, shape ().

    Returns:
      An array in the shape of the space and in its dtype as JAX has it (int32 for int64 without x64); a dict or tuple
      of arrays for a Dict or Tuple.

    Raises:
      TypeError: the space is none of Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple; or the key is not typed.
      ValueError: JAX's dtype cannot hold some members of the space; `jax_enable_x64` helps. Or the key is not ().
    """
    if isinstance(space, Dict | Tuple):
        parts = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        keys = jax.random.split(typed_key("key", key, ()), len(space.spaces))
        drawn = {name: sample(part, keys[i]) for i, (name, part) in enumerate(parts)}
        return drawn if isinstance(space, Dict) else tuple(drawn.values())
    if isinstance(space, Box):
        return _sample_box(space, key)
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        return _sample_integers(space, key)
    raise _unsupported(space)


def _sample_box(space: Box, key: jax.Array) -> jax.Array:
    if space.dtype.kind == "f":
        return _sample_reals(space, key)
    bounded = space.bounded_below & space.bounded_above
    if bounded.all():
        return _sample_integers(space, key)
    integer_key, real_key = jax.random.split(key)
    within = Box(np.where(bounded, space.low, 0), np.where(bounded, space.high, 0), dtype=space.dtype.type)
    return jnp.where(bounded, _sample_integers(within, integer_key), _sample_reals(space, real_key))


def _sample_integers(space: Space[object], key: jax.Array) -> jax.Array:
    """Sample uniformly from `low`, ..., `high`. Unsigned arithmetic wraps, and so reaches every range of a dtype."""
    key = typed_key("key", key, ())
    dtype = _jax_dtype(space)
    low, high, _ = _bounds_in(space, dtype)
    if (low != leaf_bounds(space)[0]).any() or (high != leaf_bounds(space)[1]).any():
        raise ValueError(_too_wide(space, dtype))
    unsigned = np.dtype(np.uint64 if dtype.itemsize == 8 else np.uint32)
    count = high.astype(unsigned) - low.astype(unsigned) + unsigned.type(1)  # 0: all values of a 32-bit dtype
    offset = jax.random.bits(key, low.shape, unsigned)
    if count.any():
        below = jax.random.randint(key, low.shape, 0, np.where(count == 0, unsigned.type(1), count), unsigned)
        offset = jnp.where(count == 0, offset, below)
    return (offset + low.astype(unsigned)).astype(dtype)


def _sample_reals(space: Box, key: jax.Array) -> jax.Array:
    key = typed_key("key", key, ())
    dtype = _jax_dtype(space)
    low, high, possible = _bounds_in(space, dtype)
    if not possible.all():
        raise ValueError(_too_wide(space, dtype))
    real = jnp.promote_types(dtype, jnp.float32)
    from_low = np.where(space.bounded_below, low, 0).astype(real)
    from_high = np.where(space.bounded_above, high, 0).astype(real)
    if dtype.kind != "f":
        from_high += 1  # values above `high` are rounded down to it
    # One draw, strictly inside (0, 1), serves all distributions through their quantile functions.
    uniform = jax.random.uniform(key, space.shape, real, minval=np.finfo(real).epsneg)
    cases = (
        (space.bounded_below & space.bounded_above, lambda: from_low * (1 - uniform) + from_high * uniform),
        (space.bounded_below & ~space.bounded_above, lambda: from_low - jnp.log(uniform)),
        (~space.bounded_below & space.bounded_above, lambda: from_high + jnp.log(uniform)),
        (~space.bounded_below & ~space.bounded_above, lambda: jax.scipy.special.ndtri(uniform)),
    )
    value = jnp.zeros(space.shape, real)
    for chosen, draw in cases:
        if chosen.any():
            value = jnp.where(chosen, draw(), value)
    if dtype.kind != "f":
        value = jnp.floor(value)
    return jnp.clip(value.astype(dtype), low, high)


# --- Membership -----------------------------------------------------------------------------------------------------


def contains(space: Space[object], value: object) -> jax.Array:
    """Return whether a value lies in a space: bool, shape (). NaN lies in no space.

    Args:
      space: a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them.
      value: an array in the shape of the space; a dict or tuple of arrays for a Dict or Tuple. Any width of the dtype
        is accepted: an int32 may lie in an int64 or a uint8 space.

    Raises:
      TypeError: the space is not supported; or the value is of another kind: floats for integers, no dict for a Dict.
      ValueError: the value has another shape, other keys or another length.
    """
    if isinstance(space, Dict | Tuple):
        parts = [contains(subspace, part) for subspace, part in _parts(space, value)]
        return jnp.all(jnp.stack(parts)) if parts else jnp.ones((), bool)
    leaf = _as_leaf(space, value)
    low, high, possible = _bounds_in(space, np.dtype(leaf.dtype))
    return jnp.all((leaf >= low) & (leaf <= high) & possible)


# --- Flattening -----------------------------------------------------------------------------------------------------


def flatten(space: Space[object], value: object, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """Flatten a value to a vector: float32, shape (gymnasium.spaces.flatdim(space),), as `gymnasium.spaces.flatten`.

    Discrete and MultiDiscrete are one-hot (all zeros for a value outside of the space), Box and MultiBinary are
    raveled, Dict and Tuple concatenated.

    Args:
      space: the space of the value.
      value: a member of the space, as for `contains`; of a Box also in floats, such as normalized integers.
      dtype: of the vector; Gymnasium uses the dtype of `gymnasium.spaces.flatten_space(space)`.

    Raises:
      TypeError, ValueError: as `contains`.
    """
    if isinstance(space, Dict | Tuple):
        parts = [flatten(subspace, part, dtype) for subspace, part in _parts(space, value)]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, dtype)
    leaf = _as_leaf(space, value, may_be_floats=isinstance(space, Box)).ravel()
    if isinstance(space, Box | MultiBinary):
        return leaf.astype(dtype)
    low, high = (np.ravel(bound) for bound in leaf_bounds(space))
    columns = [np.arange(first, last + 1) for first, last in zip(low, high)]
    owner = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    hot = leaf[owner] == np.concatenate(columns)
    return hot.astype(dtype)


# --- Shapes and dtypes ----------------------------------------------------------------------------------------------


def struct_of(space: Space[object], name: str = "space") -> Any:
    """Return the structs of a space's members in JAX: `jax.ShapeDtypeStruct`, in dicts and tuples.

    Raises:
      TypeError: the members are not arrays.
    """
    if isinstance(space, Dict):
        return {key: struct_of(part, f"{name}[{key!r}]") for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(struct_of(part, f"{name}[{i}]") for i, part in enumerate(space.spaces))
    if space.shape is None or space.dtype is None:
        raise TypeError(f"{name} must hold arrays, as Box, Discrete, MultiDiscrete and MultiBinary do, got {space}.")
    return shape_struct(space.shape, jax.dtypes.canonicalize_dtype(space.dtype))


# --- Shared ---------------------------------------------------------------------------------------------------------


def _jax_dtype(space: Space[object]) -> np.dtype[np.generic]:
    return np.dtype(jax.dtypes.canonicalize_dtype(space.dtype))


def _bounds_in(space: Space[object], dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the least and greatest member of a space that a dtype can hold, and whether there are any, by element."""
    low, high = leaf_bounds(space)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            below, above = low.astype(dtype), high.astype(dtype)
        # Rounding to fewer bits must not step out of the space.
        below = np.where(below < low, np.nextafter(below, dtype.type(np.inf)), below)
        above = np.where(above > high, np.nextafter(above, dtype.type(-np.inf)), above)
        return below, above, below <= above
    least, greatest = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    low, high = low.astype(object), high.astype(object)  # Python integers, whose comparisons do not overflow
    possible = np.asarray((low <= greatest) & (high >= least), bool)
    return np.asarray(np.clip(low, least, greatest), dtype), np.asarray(np.clip(high, least, greatest), dtype), possible


def _too_wide(space: Space[object], dtype: np.dtype[np.generic]) -> str:
    return f"space must fit into JAX's {dtype} to be sampled, got {space}. Set jax_enable_x64 to use 64-bit types."


def _as_leaf(space: Space[object], value: object, may_be_floats: bool = False) -> jax.Array:
    """Return a value as an array that can be compared with a space's bounds, after checking its shape and kind."""
    if not isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary):
        raise _unsupported(space)
    if not isinstance(value, jax.Array):
        try:
            value = np.asarray(value)
        except ValueError:  # ragged lists
            raise TypeError(f"value must be an array for {space}, got {shown(value)}.") from None
        if value.dtype.kind in "iu":  # JAX would wrap a number that is too large for it, perhaps into the space
            info = np.iinfo(jax.dtypes.canonicalize_dtype(value.dtype))
            value = value.clip(info.min, info.max)
    if jnp.shape(value) != space.shape:
        raise ValueError(f"value must have shape {space.shape} for {space}, got {jnp.shape(value)}.")
    kinds: tuple[type, ...] = (jnp.bool_, jnp.integer)
    if may_be_floats or (isinstance(space, Box) and space.dtype.kind == "f"):
        kinds = (*kinds, jnp.floating)
    if not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
        raise TypeError(f"value must have dtype {space.dtype} or one of the same kind for {space}, got {value.dtype}.")
    if len(kinds) == 3:
        return jnp.asarray(value, jnp.promote_types(value.dtype, _jax_dtype(space)))
    return jnp.asarray(value)


def _parts(space: Dict | Tuple[object], value: object) -> list[tuple[Space[object], object]]:
    """Return the subspaces of a space, each with its part of a value."""
    if isinstance(space, Dict):
        if not isinstance(value, Mapping):
            raise TypeError(f"value must be a dict for {space}, got {type(value).__name__}.")
        if value.keys() != space.spaces.keys():
            raise ValueError(f"value must have the keys {list(space.spaces)}, got {list(value)}.")
        return [(subspace, value[name]) for name, subspace in space.spaces.items()]
    if not isinstance(value, tuple | list):
        raise TypeError(f"value must be a tuple for {space}, got {type(value).__name__}.")
    if len(value) != len(space.spaces):
        raise ValueError(f"value must have length {len(space.spaces)} for {space}, got {len(value)}.")
    return list(zip(space.spaces, value))
