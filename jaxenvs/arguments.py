"""Checks of arguments of public functions: each error names the argument, what was expected and what came."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.jax_names import is_traced
from jaxenvs.transformations import in_any_context

T = TypeVar("T")

# Environments, steps and similar things are counted in int32 inside compiled functions.
MOST = 2**31 - 1


def shown(value: object) -> str:
    """Format a value for a message: short, and an array as its dtype and shape."""
    if isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
        return f"{value.dtype}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def integer(name: str, value: Any, least: int, most: int | None = MOST, expected: str = "") -> int:
    """Return `value` as an int from `least` to `most`. NumPy's integers are accepted, bools are not."""
    if is_traced(value):
        raise ValueError(
            f"{name} must be {expected or 'an int'}, got {shown(value)}, which is traced: it chooses a shape or a "
            "code path of the compiled function, so it cannot be swept. Call the function once for each value."
        )
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        if not expected:
            expected = f"an int from {least} to {most}"
        elif number is not None and number >= least:
            expected += f" up to {most}"
        raise ValueError(f"{name} must be {expected}, got {shown(value)}.")
    return number


def positive_int(name: str, value: object, most: int = MOST) -> int:
    """Return `value` as an int of at least 1."""
    return integer(name, value, 1, most, "a positive int")


def non_negative_int(name: str, value: object, most: int = MOST) -> int:
    """Return `value` as an int of at least 0."""
    return integer(name, value, 0, most, "a non-negative int")


def seed(name: str, value: object) -> int:
    """Return `value` as an int of at least 0, however large: seeds count modulo 2^32."""
    return integer(name, value, 0, None, "a non-negative int")


def image_size(name: str, value: object) -> tuple[int, int]:
    """Return `value` as (height, width) in pixels; a single number stands for both."""
    sides = tuple(value) if isinstance(value, tuple | list) else (value, value)
    try:
        height, width = (positive_int(name, side) for side in sides)
    except ValueError:
        raise ValueError(f"{name} must be a positive int or (height, width), got {shown(value)}.") from None
    return height, width


def number(name: str, value: Any, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf) -> Any:
    """Return `value` if it is a finite real number within bounds. A traced value need only be real and of shape ().

    Args:
      least, most: the bounds, both included.
      above: a bound that is not included.
    """
    bounds = [f"above {above}"] * (above > -math.inf) + [f"at least {least}"] * (least > -math.inf)
    bounds += [f"at most {most}"] * (most < math.inf)
    expected = "a finite number" + (f", {' and '.join(bounds)}" if bounds else "")
    if not is_real(value) or np.shape(value) != ():
        raise ValueError(f"{name} must be {expected}, got {shown(value)}.")
    if not is_traced(value):
        try:
            found = float(value)
        except OverflowError:  # an int larger than all floats
            found = math.inf
        if not (math.isfinite(found) and least <= found <= most and found > above):
            raise ValueError(f"{name} must be {expected}, got {found}.")
    return value


def as_numbers(what: str, value: object, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Convert a number, or an array of numbers, to a dtype that can hold it."""
    dtype = np.dtype(dtype)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors that require a gradient, ...
        array = np.asarray(None)
    is_kind = np.can_cast(array.dtype, dtype, casting="same_kind") and (array.dtype.kind == "b") == (dtype.kind == "b")
    if array.shape != shape or not is_kind:
        raise ValueError(f"{what} must be {dtype} with shape {shape}, got {shown(value)}.")
    with np.errstate(all="ignore"):
        numbers = array.astype(dtype)
    kept = numbers == array if dtype.kind in "biu" else np.isfinite(numbers) == np.isfinite(array)
    if not kept.all():
        raise ValueError(f"{what} must fit into {dtype}, got {shown(value)}.")
    return numbers


def batch_of_actions(expected: Any, action: Any, num_envs: int) -> Any:
    """Convert a batch of actions to the dtypes of their space. The checks run while tracing and cost a step no time.

    Args:
      expected: one action, as `action_struct` returns it; or None.

    Raises:
      ValueError: the structure or a shape is wrong.
      TypeError: a leaf is not an array, or has floats where the space has integers.
    """
    check = functools.partial(_batch_of_leaf, num_envs)
    # the structure is unknown: the environment must cope with the action
    if expected is None and jax.tree.leaves(action):
        return jax.tree_util.tree_map_with_path(check, action)
    structure: object = jax.tree.structure(expected)
    if expected is None or structure != jax.tree.structure(action):
        raise ValueError(
            f"action must have the structure of the action space, {_shown_tree(expected)}, got {_shown_tree(action)}."
        )
    return jax.tree_util.tree_map_with_path(check, action, expected)


def _batch_of_leaf(num_envs: int, path: tuple[Any, ...], leaf: object, expected: Any = None) -> Any:
    name = f"action{jax.tree_util.keystr(path)}"
    if not isinstance(leaf, jax.Array | np.ndarray) or not is_array(leaf):
        raise TypeError(f"{name} must be an array, got {shown(leaf)}.")
    if leaf.shape[:1] != (num_envs,):
        raise ValueError(f"{name} must have the leading axis num_envs = {num_envs}, got shape {leaf.shape}.")
    if expected is None:
        return leaf
    if leaf.shape[1:] != expected.shape:
        raise ValueError(f"{name} must have shape {(num_envs, *expected.shape)}, got {leaf.shape}.")
    kinds = (jnp.floating, jnp.integer, jnp.bool_)[not jnp.issubdtype(expected.dtype, jnp.floating) :]
    if not any(jnp.issubdtype(leaf.dtype, kind) for kind in kinds):
        raise TypeError(f"{name} must have dtype {expected.dtype} or one of the same kind, got {leaf.dtype}.")
    return jnp.asarray(leaf, expected.dtype)


def _shown_tree(tree: object) -> str:
    return str(jax.tree.map(lambda leaf: shown(leaf) if hasattr(leaf, "shape") else type_name(leaf), tree))


def is_real(value: object) -> bool:
    """Return whether `value` is an integer or real number, or an array of them."""
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return bool(jnp.issubdtype(value.dtype, jnp.integer) or jnp.issubdtype(value.dtype, jnp.floating))
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_array(leaf: object) -> bool:
    """Return whether JAX accepts `leaf` as an array; numbers count as arrays."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, jax.Array | bool | int | float | complex)


def hashable(name: str, value: T) -> T:
    """Return `value` if it can be hashed."""
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"{name} must be hashable, such as a number, a string or a tuple, got {shown(value)}."
        ) from None
    return value


def boolean(name: str, value: object) -> bool:
    """Return `value` as a Python bool, if it is a bool."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be a bool, got {shown(value)}.")
    return bool(value)


def one_of(name: str, value: T, choices: Collection[object]) -> T:
    """Return `value` if it is one of `choices`, in value and type."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}.")
    return value


def instance(name: str, value: T, kind: type | tuple[type, ...], expected: str) -> T:
    """Return `value` if it is an instance of `kind`.

    Args:
      expected: `kind` in words, as "a str".
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {expected}, got {shown(value) if value is None else type_name(value)}.")
    return value


def function(name: str, value: T) -> T:
    """Return `value` if it can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {shown(value)}.")
    return value


def typed_key(name: str, value: object, *shapes: tuple[int, ...]) -> jax.Array:
    """Return `value` if it is a typed PRNG key of one of the given shapes.

    Args:
      shapes: the allowed shapes.
    """
    if not isinstance(value, jax.Array) or not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        got = f"an array of {value.dtype}" if isinstance(value, jax.Array | np.ndarray) else shown(value)
        raise TypeError(f"{name} must be a typed key, such as jax.random.key(0), got {got}.")
    if value.shape not in shapes:
        raise ValueError(f"{name} must have shape {' or '.join(map(str, shapes))}, got {value.shape}.")
    return value


def type_name(value: object) -> str:
    """Return the name of a value's class for a message."""
    return "an array" if isinstance(value, jax.Array) else type(value).__name__


def did_you_mean(name: str, known: Iterable[str], most: int = 3, show: Callable[[str], str] = str) -> str:
    """Return a question with the known names nearest to a wrong one; an empty string if none is near."""
    near = difflib.get_close_matches(name, list(known), n=most, cutoff=0.6 if most == 1 else 0.4)
    return f"Did you mean {' or '.join(map(show, near))}?" if near else ""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the five known names that are nearest to a wrong one, however far."""
    return difflib.get_close_matches(name, list(known), n=5, cutoff=0.0)


def no_parameter(owner: str, name: str, names: Iterable[str]) -> str:
    """Format the error message for a parameter that an environment does not have.

    Args:
      owner: the class of the environment.
      names: the names of its parameters.
    """
    names = list(names)
    hint = did_you_mean(name, names, most=1, show=repr)
    return f"{owner} has no parameter {name!r}. {hint}{' ' * bool(hint)}It has: {', '.join(names) or 'none'}."


def explain_calls(cls: type) -> None:
    """Make `reset` and `step` of an environment say how to call them, if code calls them as in Gymnasium.

    Args:
      cls: the class, changed in place. Inherited methods that explain their calls already stay as they are, and so do
        static methods and the like.
    """
    usages = {"reset": "state, timestep = env.reset(key)", "step": "state, timestep = env.step(state, action)"}
    for name, usage in usages.items():
        method = inspect.getattr_static(cls, name)
        if inspect.isfunction(method) and not hasattr(method, "explains_calls"):
            setattr(cls, name, _explained(method, usage))


def _explained(method: Callable[..., Any], usage: str) -> Callable[..., Any]:
    signature, takes_key = inspect.signature(method), "(key)" in usage

    @functools.wraps(method)
    def call(self: object, *args: object, **kwargs: object) -> Any:
        try:
            values = list(signature.bind(self, *args, **kwargs).arguments.values())
        except TypeError as error:
            raise TypeError(
                f"{type(self).__name__}.{method.__name__}: {error}. An environment of jaxenvs keeps no state: "
                f'`{usage}`. gymnasium.make("jaxenvs/ID") makes one with Gymnasium\'s reset and step.'
            ) from None
        if takes_key and len(values) > 1 and is_real(values[1]) and np.ndim(values[1]) == 0:
            typed_key("key", values[1])  # which refuses a seed; keys of the old kind, uint32[2], pass
        return called(self, *args, **kwargs)

    called = in_any_context(method)
    vars(call)["explains_calls"] = True
    return call


def replaceable(cls: Any) -> None:
    """Give a frozen dataclass a method `replace`, which the error of an assignment to a field then names.

    Args:
      cls: changed in place. It keeps a `replace` that it has already.
    """
    if not hasattr(cls, "replace"):
        cls.replace = dataclasses.replace
    assign = cls.__setattr__

    def refuse(self: object, name: str, value: object) -> None:
        try:
            assign(self, name, value)
        except dataclasses.FrozenInstanceError:
            noun = "env" if hasattr(cls, "step") else "state"
            raise dataclasses.FrozenInstanceError(
                f"cannot assign to {cls.__name__}.{name}: {noun}.replace({name}=...) makes a changed copy."
            ) from None

    cls.__setattr__ = refuse
