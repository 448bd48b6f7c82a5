"""Attribute lookup for `get_attr` and `env_method` of a JaxVecEnv, and the error for Gymnasium-only attributes."""

from __future__ import annotations

import copy
import functools
from typing import Any

from gymnasium.envs.registration import EnvSpec

from jaxenvs import Environment, Wrapper

# Added to errors about attributes that existing SB3 code reads, such as `model.get_env().envs[0]`.
GYMNASIUMS = (
    "One compiled function steps all environments of a JaxVecEnv, which are not Gymnasium environments. "
    '`get_attr("env")` returns the jaxenvs environments; `make_vec_env(id, backend="serial")` or `gymnasium.make(id)` '
    "makes Gymnasium's."
)


def attribute_of(env: Environment[Any], name: str, spec: EnvSpec | None) -> Any:
    """Return an attribute of a JAX environment or of one inside its wrappers, by its name here or in Gymnasium.

    Gymnasium's names are `spec`, which is given, and `_max_episode_steps`. If there is no such attribute, the message
    of the AttributeError lists the parameters, and says how to make Gymnasium's environments.
    """
    if name == "env":
        return env
    if name == "spec":
        return copy.deepcopy(spec)
    try:
        return env.parameter("max_steps" if name == "_max_episode_steps" else name)  # a TimeLimit has it
    except AttributeError as error:
        raise AttributeError(f"{error} {GYMNASIUMS}") from None


def with_state(env: Environment[Any], name: str, state: object) -> Any:
    """Return the method of an environment or of one inside its wrappers, given that environment's part of the state."""
    while isinstance(env, Wrapper) and not hasattr(env, name):
        state, env = env.inner_state(state), env.inner_env(state)
    return functools.partial(getattr(env, name), state)
