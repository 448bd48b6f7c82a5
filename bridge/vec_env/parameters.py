"""The numeric parameters of environments that are running: read, replaced, given to some lanes only."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.vec_env.arguments import as_numbers
from jaxenvs import Environment, VectorEnv, Wrapper


def with_parameter(venv: VectorEnv, name: str, value: Any, lanes: list[int]) -> VectorEnv:
    """`venv` with the parameter `name` changed, in all lanes or in some.

    Raises:
      AttributeError: there is no such parameter.
      ValueError: it is static, or `value` is not a number of its kind and shape.
    """
    env = venv.env
    old = _require_numeric(env, name)
    shape = np.shape(old) if venv.env_axis is None else np.shape(old)[1:]
    dtype = jnp.result_type(old)
    new = as_parameter(name, value, shape, dtype)

    if venv.env_axis is None and len(set(lanes)) == venv.num_envs:
        # Of the type it was, because a program is compiled for types.
        same_type = type(old)(value) if isinstance(old, int | float) else jnp.asarray(new)
        return dataclasses.replace(venv, env=env.replace(**{name: same_type}))
    if venv.env_axis is None:
        env = jax.tree.map(lambda leaf: _one_a_lane(leaf, venv.num_envs), env)
    changed = np.array(env.parameter(name))
    changed[lanes] = new
    return dataclasses.replace(venv, env=env.replace(**{name: changed}), env_axis=0)


def as_parameter(what: str, value: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """`as_numbers`, and none of them NaN."""
    numbers = as_numbers(what, value, shape, dtype)
    if np.isnan(numbers).any():
        raise ValueError(f"{what} must not be NaN.")
    return numbers


def _one_a_lane(leaf: Any, num_envs: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(leaf, jnp.result_type(leaf)), (num_envs, *np.shape(leaf))).copy()


def _require_numeric(env: Environment[Any], name: str) -> Any:
    """The present value of a numeric parameter."""
    owner = env
    while name not in owner.parameter_names and isinstance(owner, Wrapper):
        owner = owner.env
    if name not in owner.parameter_names:
        owner.replace(**{name: None})  # raises, and says which parameters there are
    value = owner.parameter(name)
    fields = dataclasses.fields(owner)  # type: ignore[arg-type]
    static = {field.name for field in fields if field.metadata.get("static")}
    if name in static or isinstance(value, Environment):
        raise ValueError(f"{type(owner).__name__}.{name} is part of the program: make a new JaxVecEnv to change it.")
    return value
