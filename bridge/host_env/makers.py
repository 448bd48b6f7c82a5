"""Functions that each make one Gymnasium environment, in this or another process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from bridge.environment_ids import gymnasium_spec
from bridge.sb3 import AnyEnv
from jaxenvs import Environment
from jaxenvs.arguments import shown

# The functions below are sent to other processes by value, so they must not refer to functions of this package: these
# would be sent by name, and looking them up imports JAX and PyTorch.


def maker(env_id: object, kwargs: dict[str, Any]) -> Callable[[], AnyEnv]:
    """Return the function that makes one environment, with the parameters `kwargs`."""
    if not isinstance(env_id, str):
        if not callable(env_id) or isinstance(env_id, Environment):
            raise TypeError(
                "env_id must be an id of Gymnasium, or a class or function that makes a Gymnasium environment, got "
                f"{shown(env_id)}."
            )
        return functools.partial(env_id, **kwargs)
    spec = gymnasium_spec(env_id)  # in another process the id may not be registered

    def make() -> AnyEnv:
        try:
            return gymnasium.make(spec, **{"render_mode": "rgb_array", **kwargs})
        except TypeError:
            return gymnasium.make(spec, **kwargs)

    return make


def env_fn(
    make: Callable[[], AnyEnv],
    seed: int | None,
    monitor_kwargs: Mapping[str, object],
    wrapper_class: Callable[..., AnyEnv] | None,
    wrapper_kwargs: Mapping[str, object],
) -> Callable[[], AnyEnv]:
    """Return the function that makes the environment of one index, in a Monitor if there are arguments for one.

    `seed` seeds its action space.
    """

    def make_env(**changes: Any) -> AnyEnv:
        env = make()
        if not isinstance(env, gymnasium.Env) or not hasattr(env, "action_space"):
            raise TypeError(
                f"env_id must make a Gymnasium environment with observation_space and action_space, got {env!r}."
            )
        if seed is not None:
            env.action_space.seed(seed)
        if monitor_kwargs:
            from stable_baselines3.common.monitor import Monitor

            env = Monitor(env, **{**monitor_kwargs, **changes})
        return env if wrapper_class is None else wrapper_class(env, **wrapper_kwargs)

    # In a restarted worker, a Monitor continues the file of the previous one.
    vars(make_env)["again"] = functools.partial(make_env, override_existing=False)
    return make_env


class FirstMade:
    """A function that makes environments, and has already made one, which it returns first."""

    def __init__(self, make: Callable[..., object], env: object) -> None:
        self.make = make
        self.unwrapped = getattr(env, "unwrapped", env)
        self._made = [env]

    def __call__(self, **kwargs: object) -> Any:
        return self._made.pop() if self._made else self.make(**kwargs)


def require_one(env: object, n_envs: int, kwargs: Mapping[str, object]) -> None:
    """Raise a ValueError if an environment that has been made should be several, or have other arguments."""
    if n_envs > 1 or kwargs:
        given = f"n_envs = {n_envs}" if n_envs > 1 else f"env_kwargs = {kwargs}"
        raise ValueError(
            f"env_id must be an id, or a function that makes the environment, for {given}, got {shown(env)}, which has "
            "been made: pass lambda: gymnasium.make(...), for example."
        )
