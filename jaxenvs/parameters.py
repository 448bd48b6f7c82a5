"""The numeric parameters of environments that are running: read, replaced, given to some lanes only."""

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
    """The environment whose parameter `name` is, `env` or one inside it, and the parameter's value.

    Raises:
      AttributeError: there is no such parameter; the message has the nearest.
      ValueError: it is no number but part of the program: static, or an environment.
    """
    owner = env
    while name not in owner.parameter_names and isinstance(owner, Wrapper):
        owner = owner.env
    if name not in owner.parameter_names:
        owner.replace(**{name: None})  # raises, and says which parameters there are
    value = owner.parameter(name)
    static_names = {f.name for f in dataclasses.fields(owner) if f.metadata.get("static")}  # type: ignore[arg-type]
    if name in static_names or isinstance(value, Environment):
        raise ValueError(
            f"{type(owner).__name__}.{name} is static, so it is compiled into the function: make a new environment to "
            "change it."
        )
    return owner, value


def with_value(env: Environment[Any], name: str, value: Any) -> Environment[Any]:
    """`env` with the numeric parameter `name` changed. What was compiled for it need not be compiled again.

    Raises:
      AttributeError: there is no such parameter.
      ValueError: it is static, or `value` is not a number of its kind and shape.
    """
    _, old = numeric_parameter(env, name)
    new = as_parameter(name, value, np.shape(old), jnp.result_type(old))
    # Of the type it was, because a program is compiled for types.
    return env.replace(**{name: type(old)(value) if isinstance(old, int | float) else jnp.asarray(new)})


def with_parameter(venv: VectorEnv, name: str, value: Any, lanes: list[int]) -> VectorEnv:
    """`venv` with the numeric parameter `name` changed, in all lanes or in some.

    Raises:
      AttributeError: there is no such parameter.
      ValueError: it is static, or `value` is not a number of its kind and shape.
    """
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
    """`as_numbers`, and none of them NaN."""
    numbers = as_numbers(what, value, shape, dtype)
    if np.isnan(numbers).any():
        raise ValueError(f"{what} must not be NaN.")
    return numbers


def _one_a_lane(leaf: Any, num_envs: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(leaf, jnp.result_type(leaf)), (num_envs, *np.shape(leaf))).copy()
