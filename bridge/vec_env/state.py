"""The state of a JaxVecEnv as a flat dict of arrays, and back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxenvs import Environment, VectorEnv, VectorState, Wrapper
from jaxenvs.arguments import as_numbers, instance
from jaxenvs.arrays import is_key, key_data, key_impl, to_arrays
from jaxenvs.parameters import as_parameter

# Matches the memory address in a repr, which differs between processes.
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def state_to_arrays(venv: VectorEnv, state: VectorState) -> dict[str, np.ndarray]:
    """Return one array for each leaf of the state and for each parameter, under its path; keys as their data."""
    arrays = {"environment": np.array(_name(venv.env)), "env_axis": np.array(-1 if venv.env_axis is None else 0)}
    for prefix, tree in (("parameters", venv.env), ("state", state)):
        arrays |= {prefix + path: array for path, array in to_arrays(tree).items()}
    return arrays


def state_from_arrays(venv: VectorEnv, arrays: Mapping[str, object]) -> tuple[VectorEnv, VectorState]:
    """Return `venv` with the parameters, and the state, that `state_to_arrays` wrote, after checking all of it."""
    rest = dict(instance("state", arrays, Mapping, "a dict of arrays, as get_state returns it"))

    def take(name: str) -> object:
        if name not in rest:
            raise ValueError(f"state has no {name}. It has: {', '.join(map(str, arrays)) or 'nothing'}.")
        return rest.pop(name)

    def numbers(
        name: str, shape: tuple[int, ...], dtype: npt.DTypeLike, convert: Callable[..., np.ndarray] = as_numbers
    ) -> np.ndarray:
        return convert(f"state[{name!r}]", take(name), shape, dtype)

    came = str(take("environment"))
    expected = _name(venv.env)
    if came != expected:
        raise ValueError(f"state must come from the environment {expected}, got one from {came}.")
    axis = int(numbers("env_axis", (), np.int64))
    if axis not in (-1, 0):
        raise ValueError(f"state['env_axis'] must be -1 or 0, got {axis}.")
    lead = (venv.num_envs,) if axis == 0 else ()
    one = venv.env if venv.env_axis is None else jax.tree.map(lambda leaf: leaf[0], venv.env)

    def parameter(path: tuple[object, ...], leaf: Any) -> object:
        name = "parameters" + jax.tree_util.keystr(path)
        came: Any = rest.get(name)
        array = numbers(name, lead + np.shape(leaf), jnp.result_type(leaf), as_parameter)
        # Keep the parameter's type, because functions are compiled for types.
        return type(leaf)(came) if axis == -1 and isinstance(leaf, int | float) else array

    env = jax.tree_util.tree_map_with_path(parameter, one)
    _require_parameters(env)
    venv = dataclasses.replace(venv, env=env, env_axis=None if axis == -1 else 0)

    def part(path: tuple[object, ...], leaf: object) -> jax.Array:
        data = jax.eval_shape(key_data, leaf)
        array = jnp.array(numbers("state" + jax.tree_util.keystr(path), data.shape, data.dtype))
        return jax.random.wrap_key_data(array, impl=key_impl(leaf)) if is_key(leaf) else array

    shapes, _ = jax.eval_shape(venv.reset, jax.random.key(0))
    state = jax.tree_util.tree_map_with_path(part, shapes)
    if rest:
        raise ValueError(
            f"state must hold only what get_state returned, but it also holds {', '.join(map(str, rest))}."
        )
    return venv, state


def _require_parameters(env: Environment[Any]) -> None:
    """Run each class's check of its parameters, which JAX skipped when it rebuilt the environments."""
    env.__check_init__()
    if isinstance(env, Wrapper):
        _require_parameters(env.env)


def _name(env: Environment[Any]) -> str:
    """Return the classes and their static fields, such as "TimeLimit(env=CartPole(semi_implicit_euler=False))"."""
    parts = []
    for field in dataclasses.fields(env):
        value = getattr(env, field.name)
        if isinstance(value, Environment):
            parts.append(f"{field.name}={_name(value)}")
        elif field.metadata.get("static"):
            parts.append(f"{field.name}={ADDRESS.sub('', repr(value))}")
    return f"{type(env).__name__}({', '.join(parts)})"
