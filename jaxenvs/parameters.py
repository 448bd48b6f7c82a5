"""Read and replace numeric parameters of running environments, in all of a batch or only in some."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxenvs.arguments import as_numbers
from jaxenvs.environment import Environment, EnvironmentType, Wrapper
from jaxenvs.vector import VectorEnv


def numeric_parameter(env: Environment[Any], name: str) -> tuple[Environment[Any], Any]:
    """Return the environment that has the parameter `name`, `env` or one inside it, and the parameter's value."""
    owner = env
    while name not in owner.parameter_names and isinstance(owner, Wrapper):
        owner = owner.env
    if name not in owner.parameter_names:
        owner.replace(**{name: None})  # raises, and lists the parameters
    value = owner.parameter(name)
    static_names = {f.name for f in dataclasses.fields(owner) if f.metadata.get("static")}
    if name in static_names or isinstance(value, Environment):
        raise ValueError(
            f"{type(owner).__name__}.{name} is static, so it is compiled into the function: make a new environment to "
            "change it."
        )
    return owner, value


def with_value(env: EnvironmentType, name: str, value: object) -> EnvironmentType:
    """Return `env` with the numeric parameter `name` changed, for which compiled functions stay valid.

    A parameter that is a pytree may also get another structure or other shapes, for which functions compile again.
    """
    _, old = numeric_parameter(env, name)
    if _has_other_shapes(value, old):
        return env.replace(**{name: value})
    return env.replace(**{name: _like(name, value, old)})


def with_parameter(venv: VectorEnv, name: str, value: object, env_indices: list[int]) -> VectorEnv:
    """Return `venv` with the numeric parameter `name` changed in the environments with these indices."""
    env = venv.env
    if venv.env_axis is None and len(set(env_indices)) == venv.num_envs:
        return dataclasses.replace(venv, env=with_value(env, name, value))
    _, old = numeric_parameter(env, name)
    one = old if venv.env_axis is None else jax.tree.map(lambda leaf: np.asarray(leaf)[0], old)
    if _has_other_shapes(value, one):
        raise ValueError(
            f"{name} must keep its structure and shapes where environments have different parameters: change all of "
            "them, or make a new environment."
        )
    new = _like(name, value, one)
    if venv.env_axis is None:
        env = jax.tree.map(lambda leaf: _one_per_env(leaf, venv.num_envs), env)

    def change(values: jax.typing.ArrayLike, new: object) -> np.ndarray:
        changed = np.array(values)
        changed[env_indices] = new
        return changed

    return dataclasses.replace(
        venv, env=env.replace(**{name: jax.tree.map(change, env.parameter(name), new)}), env_axis=0
    )


def _has_other_shapes(value: object, old: object) -> bool:
    """Return whether a pytree, such as a dict of arrays, has another structure than the parameter or other shapes."""
    if jax.tree_util.all_leaves([old]):
        return False
    structure: object = jax.tree.structure(old)
    if structure != jax.tree.structure(value):
        return True
    return any(np.shape(a) != np.shape(b) for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(value), strict=True))


def _like(name: str, value: object, old: object) -> Any:
    """Convert the value of a parameter, or each leaf of it, to the dtype and type that the parameter has.

    Raises:
      ValueError: a leaf is not a number of the old one's kind and shape, or NaN.
    """

    def convert(path: tuple[Any, ...], old: Any, new: Any) -> Any:
        what = name + jax.tree_util.keystr(path)
        number = as_parameter(what, new, np.shape(old), jnp.result_type(old))
        # Keep the type, because functions are compiled for types.
        return type(old)(new) if isinstance(old, int | float) else jnp.asarray(number)

    if jax.tree_util.all_leaves([old]):
        return convert((), old, value)
    return jax.tree_util.tree_map_with_path(convert, old, value)


def as_parameter(what: str, value: object, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Return `as_numbers(...)` after checking that none of them is NaN."""
    numbers = as_numbers(what, value, shape, dtype)
    if np.isnan(numbers).any():
        raise ValueError(f"{what} must not be NaN.")
    return numbers


def _one_per_env(leaf: jax.typing.ArrayLike, num_envs: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(leaf, jnp.result_type(leaf)), (num_envs, *np.shape(leaf))).copy()
