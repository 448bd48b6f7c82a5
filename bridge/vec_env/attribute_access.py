"""What `get_attr` and `env_method` of a JaxVecEnv find, and what they say of the attributes that only Gymnasium has."""

from __future__ import annotations

import copy
from typing import Any

from gymnasium.envs.registration import EnvSpec

from jaxenvs import Environment, TimeLimit, Wrapper

# For attributes that public code reads, as `model.get_env().envs[0]`.
GYMNASIUMS = (
    "One compiled function steps all environments of a JaxVecEnv, which are not Gymnasium environments. "
    '`get_attr("env")` returns the jaxenvs environments; `make_vec_env(id, backend="serial")` or `gymnasium.make(id)` '
    "makes Gymnasium's."
)


def attribute_of(env: Environment[Any], name: str, spec: EnvSpec | None) -> Any:
    """Return an attribute of a JAX environment or of one inside its wrappers, by its name here or in Gymnasium.

    Args:
      env: that of one index.
      name: of the attribute. `spec` and `_max_episode_steps` are Gymnasium's names.
      spec: that of the id from which the environments were made, if there was one.

    Raises:
      AttributeError: there is none; the message lists the parameters, and says how to get Gymnasium's environments.
    """
    if name == "env":
        return env
    if name == "spec":
        return copy.deepcopy(spec)
    if name == "_max_episode_steps" and (limit := _time_limit(env)) is not None:
        return limit.max_steps
    try:
        return env.parameter(name)
    except AttributeError as error:
        raise AttributeError(f"{error} {GYMNASIUMS}") from None


def _time_limit(env: Environment[Any]) -> TimeLimit | None:
    while isinstance(env, Wrapper) and not isinstance(env, TimeLimit):
        env = env.env
    return env if isinstance(env, TimeLimit) else None


def state_of(method: Any, env: Environment[Any], state: Any) -> Any:
    """Return the state of the environment whose method this is, out of the state of the wrappers around it."""
    owner = getattr(method, "__self__", None)
    while isinstance(owner, Environment) and env is not owner and isinstance(env, Wrapper):
        state, env = env.inner_state(state), env.env
    return state
