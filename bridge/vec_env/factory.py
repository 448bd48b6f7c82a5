"""make_vec_env: as Stable-Baselines3's, for JAX environments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from stable_baselines3.common.vec_env import VecEnv, VecMonitor

import jaxenvs
from bridge.vec_env.jax_vec_env import JaxVecEnv
from jaxenvs import Environment


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
      monitor_kwargs: for VecMonitor, with `monitor_dir`.
      wrapper_kwargs: for `wrapper_class`.

    `vec_env_cls` and `vec_env_kwargs` are missing on purpose: there is one way to step JAX environments.
    """
    env_kwargs = dict(env_kwargs or {})
    if isinstance(env_id, str):
        env = jaxenvs.make(env_id, **env_kwargs)
    elif isinstance(env_id, Environment):
        env = env_id.replace(**env_kwargs)
    else:
        env = env_id(**env_kwargs)
    if wrapper_class is not None:
        env = wrapper_class(env, **(wrapper_kwargs or {}))
    vec_env = JaxVecEnv(env, n_envs, None if seed is None else seed + start_index)
    if monitor_dir is None:
        return vec_env
    with warnings.catch_warnings():
        # VecMonitor warns that it overwrites the `episode` of the infos. Its own says the same.
        warnings.filterwarnings("ignore", message=".*already wrapped with a `Monitor`")
        return VecMonitor(vec_env, f"{monitor_dir}/monitor.csv", **(monitor_kwargs or {}))
