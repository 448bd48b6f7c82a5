"""make_vec_env: as Stable-Baselines3's, for JAX environments."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

import jaxenvs
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import Environment
from jaxenvs.arguments import instance, non_negative_int, positive_int, shown
from jaxenvs.arguments import seed as as_seed


def make_vec_env(
    env_id: str | Environment[Any] | Callable[..., Environment[Any]],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[..., Environment[Any]] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
) -> VecEnv:
    """A monitored VecEnv of JAX environments, with the arguments of SB3's `make_vec_env`.

    Args:
      env_id: an id of `jaxenvs.registered()`; or an environment; or a class or function that makes one.
      n_envs: how many.
      seed: as JaxVecEnv's.
      start_index: added to the seed, so that several VecEnvs can share one.
      monitor_dir: a folder for the log of episodes, `monitor.csv`, of all environments together (VecMonitor's).
        Without one, `episode` is in the infos all the same.
      wrapper_class: from the environment to another: a jaxenvs Wrapper, not a Gymnasium one.
      env_kwargs: parameters of the environment.
      monitor_kwargs: for VecMonitor: `info_keywords`, what of an info `episode` and the log tell, too.
      wrapper_kwargs: for `wrapper_class`.

    `vec_env_cls` and `vec_env_kwargs` are missing on purpose: there is one way to step JAX environments.

    Raises:
      ValueError, TypeError: an argument is not what it must be.
      UnknownEnvironment: there is no such id.
    """
    n_envs, start_index = positive_int("n_envs", n_envs), non_negative_int("start_index", start_index)
    if seed is not None:
        seed = as_seed("seed", seed) + start_index
    monitor_kwargs = _as_dict("monitor_kwargs", monitor_kwargs)
    if unknown := monitor_kwargs.keys() - {"info_keywords"}:
        raise TypeError(f"monitor_kwargs may have VecMonitor's info_keywords, got {', '.join(map(repr, unknown))}.")
    if monitor_dir is not None:
        instance("monitor_dir", monitor_dir, (str, os.PathLike), "a str")
    env = _make_env(env_id, _as_dict("env_kwargs", env_kwargs))
    wrapper_kwargs = _as_dict("wrapper_kwargs", wrapper_kwargs)
    if wrapper_class is not None:
        env = _wrap(env, wrapper_class, wrapper_kwargs)
    vec_env = JaxVecEnv(env, n_envs, seed)
    if monitor_dir is None and not monitor_kwargs:
        return vec_env
    with warnings.catch_warnings():
        # VecMonitor warns that it overwrites the `episode` of the infos. Its own says the same.
        warnings.filterwarnings("ignore", message=".*already wrapped with a `Monitor`")
        return VecMonitor(vec_env, None if monitor_dir is None else f"{monitor_dir}/monitor.csv", **monitor_kwargs)


def _make_env(env_id: Any, kwargs: dict[str, Any]) -> Environment[Any]:
    if isinstance(env_id, str):
        return jaxenvs.make(env_id, **kwargs)
    if isinstance(env_id, Environment):
        return env_id.replace(**kwargs)
    env = env_id(**kwargs) if callable(env_id) else None
    if not isinstance(env, Environment):
        raise TypeError(
            "env_id must be an id of jaxenvs.registered(), a jaxenvs Environment, or a class or function that makes "
            f"one, got {shown(env_id)}."
        )
    return env


def _wrap(env: Environment[Any], wrapper_class: Any, kwargs: dict[str, Any]) -> Environment[Any]:
    is_gymnasium = isinstance(wrapper_class, type) and issubclass(wrapper_class, gymnasium.Wrapper)
    wrapped = wrapper_class(env, **kwargs) if callable(wrapper_class) and not is_gymnasium else None
    if not isinstance(wrapped, Environment):
        raise TypeError(f"wrapper_class must be a jaxenvs Wrapper, or make one, got {shown(wrapper_class)}.")
    return wrapped


def _as_dict(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else dict(instance(name, value, Mapping, "a dict"))
