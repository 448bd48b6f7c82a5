"""The state of a JaxVecEnv as a flat dict of arrays, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.vec_env.packing import is_key, key_impl
from jaxenvs import Environment, VectorEnv, VectorState


def state_to_arrays(venv: VectorEnv, state: VectorState) -> dict[str, np.ndarray]:
    """One array for each leaf of the state and each parameter, under its path; keys as their data."""
    arrays = {"environment": np.array(_name(venv.env)), "env_axis": np.array(-1 if venv.env_axis is None else 0)}
    for prefix, tree in (("parameters", venv.env), ("state", state)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            arrays[prefix + jax.tree_util.keystr(path)] = np.array(_key_data(leaf))
    return arrays


def state_from_arrays(venv: VectorEnv, arrays: Mapping[str, Any]) -> tuple[VectorEnv, VectorState]:
    """`venv` with the parameters, and the state, that `state_to_arrays` wrote.

    Raises:
      ValueError: they are those of another environment or another number of lanes.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    came, expected = str(arrays.get("environment")), _name(venv.env)
    if came != expected:
        raise ValueError(f"state is of the environment {came}, expected {expected}.")
    env_axis = None if arrays["env_axis"] < 0 else 0
    lanes = () if env_axis is None else (venv.num_envs,)
    one = venv.env if venv.env_axis is None else jax.tree.map(lambda leaf: leaf[0], venv.env)

    def parameter(path: Any, leaf: Any) -> Any:
        name = "parameters" + jax.tree_util.keystr(path)
        array = _take(arrays, name, lanes + np.shape(leaf), jnp.result_type(leaf))
        return type(leaf)(array) if env_axis is None and isinstance(leaf, int | float) else array

    env = jax.tree_util.tree_map_with_path(parameter, one)
    venv = dataclasses.replace(venv, env=env, env_axis=env_axis)

    def part(path: Any, leaf: Any) -> Any:
        data = jax.eval_shape(_key_data, leaf)
        array = jnp.array(_take(arrays, "state" + jax.tree_util.keystr(path), data.shape, data.dtype))
        return jax.random.wrap_key_data(array, impl=key_impl(leaf)) if is_key(leaf) else array

    expected_state, _ = jax.eval_shape(venv.reset, jax.random.key(0))
    return venv, jax.tree_util.tree_map_with_path(part, expected_state)


def _take(arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    if name not in arrays:
        raise ValueError(f"state has no {name}. It has: {', '.join(arrays)}.")
    array = arrays[name]
    if array.shape != shape or not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise ValueError(f"state[{name!r}] is {array.dtype}{list(array.shape)}, expected {dtype}{list(shape)}.")
    return array.astype(dtype)


def _key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if hasattr(leaf, "dtype") and is_key(leaf) else leaf


def _name(env: Environment[Any]) -> str:
    """The classes and their static fields, as "TimeLimit(env=CartPole(semi_implicit_euler=False))"."""
    parts = []
    for field in dataclasses.fields(env):  # type: ignore[arg-type]
        value = getattr(env, field.name)
        if isinstance(value, Environment):
            parts.append(f"{field.name}={_name(value)}")
        elif field.metadata.get("static"):
            parts.append(f"{field.name}={value!r}")
    return f"{type(env).__name__}({', '.join(parts)})"
