"""Functions that make environments, one of which was already made to see its kind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium

from jaxenvs.arguments import shown


def parallel_maker(env_id: Any, env: Any, n_envs: int, kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Return the function that makes PettingZoo's environments, from one, or from the function that made it."""
    if callable(env_id):
        return functools.partial(Made(env_id, env), **kwargs)
    if n_envs > 1:
        raise ValueError(
            f"env_id must be a function that makes the environment, for n_envs = {n_envs}, got {shown(env)}."
        )
    return lambda: env


class Made:
    """A function that makes environments, and has already made one, which it returns first."""

    def __init__(self, make: Callable[..., gymnasium.Env[Any, Any]], env: gymnasium.Env[Any, Any]) -> None:
        self.make = make
        self.unwrapped = getattr(env, "unwrapped", env)
        self._made = [env]

    def __call__(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        return self._made.pop() if self._made else self.make(**kwargs)
