"""Read and replace numeric parameters of running environments, in all of a batch or only in some."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import as_numbers
from jaxenvs.environment import Environment, Wrapper
from jaxenvs.vector import VectorEnv


def numeric_parameter(env: Environment[Any], name: str) -> tuple[Environment[Any], Any]:
    """Return the environment that has the parameter `name`, `env` or one inside it, and the parameter's value."""
    owner = env
    while name not in owner.parameter_names and isinstance(owner, Wrapper):
        owner = owner.env
    if name not in owner.parameter_names:
        owner.replace(**{name: None})  # raises, and lists the parameters
    value = owner.parameter(name)
    static_names = {f.name for f in dataclasses.fields(owner) if f.metadata.get("static")}  # type: ignore[arg-type]
    if name in static_names or isinstance(value, Environment):
        raise ValueError(
            f"{type(owner).__name__}.{name} is static, so it is compiled into the function: make a new environment to "
            "change it."
        )
    return owner, value


def with_value(env: Environment[Any], name: str, value: Any) -> Environment[Any]:
    """Return `env` with the numeric parameter `name` changed, for which compiled functions stay valid."""
    _, old = numeric_parameter(env, name)
    new = as_parameter(name, value, np.shape(old), jnp.result_type(old))
    # Keep the type, because functions are compiled for types.
    return env.replace(**{name: type(old)(value) if isinstance(old, int | float) else jnp.asarray(new)})


def with_parameter(venv: VectorEnv, name: str, value: Any, lanes: list[int]) -> VectorEnv:
    """Return `venv` with the numeric parameter `name` changed, in all environments or in some."""
    env = venv.env
    if venv.env_axis is None and len(set(lanes)) == venv.num_envs:
        return dataclasses.replace(venv, env=with_value(env, name, value))
    _, old = numeric_parameter(env, name)
    shape = np.shape(old) if venv.env_axis is None else np.shape(old)[1:]
    new = as_parameter(name, value, shape, jnp.result_type(old))
    if venv.env_axis is None:
        env = jax.tree.map(lambda leaf: _one_a_lane(leaf, venv.num_envs), env)
    changed = np.array(env.parameter(name))
    changed[lanes] = new
    return dataclasses.replace(venv, env=env.replace(**{name: changed}), env_axis=0)


def as_parameter(what: str, value: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return `as_numbers(...)` after checking that none of them is NaN."""
    numbers = as_numbers(what, value, shape, dtype)
    if np.isnan(numbers).any():
        raise ValueError(f"{what} must not be NaN.")
    return numbers


def _one_a_lane(leaf: Any, num_envs: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(leaf, jnp.result_type(leaf)), (num_envs, *np.shape(leaf))).copy()
