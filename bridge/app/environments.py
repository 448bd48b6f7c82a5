"""The environments of a run, by their ids: JAX environments, Gymnasium's, EnvPool's, or a user's class."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
from stable_baselines3.common.atari_wrappers import AtariWrapper
from stable_baselines3.common.vec_env import VecEnv

import jaxenvs
from bridge import make_atari_env, make_vec_env
from bridge.atari import native_id, native_options
from bridge.environment_ids import gymnasium_id, is_jax_id, jax_parameters, require_in_gymnasium, with_arrays
from bridge.host_env import envpool
from bridge.host_env.makers import maker
from bridge.sb3 import AnyEnv, Space
from jaxenvs import Environment, TimeLimit, Wrapper
from jaxenvs.cli.user_errors import UserError, described, find_environment, user_errors

# "auto" is "jax" or "serial", as jaxenvs has the environment or not.
BACKENDS = ("auto", "jax", "serial", "process", "native")


@dataclasses.dataclass(frozen=True)
class EnvironmentInfo:
    """The properties of a run's environments.

    Attributes:
      backend: what steps them, one of BACKENDS, but not "auto".
      observation_space, action_space: of one environment.
      has_time_limit: True if every episode ends.
      reward_threshold: the mean return at which the task counts as solved, or None.
      is_game: True for Atari games, which share settings in RL Baselines3 Zoo.
      make: a function from the number of environments and a seed to a VecEnv; further keyword arguments are parameters
        of Gymnasium's and EnvPool's environments, except for `wrapper`, a function that wraps each environment.
    """

    backend: str
    observation_space: Space
    action_space: Space
    has_time_limit: bool
    reward_threshold: float | None
    is_game: bool
    make: Callable[..., VecEnv]


def find(backend: str, env_id: str, env_kwargs: dict[str, Any]) -> EnvironmentInfo:
    """Return the environment of an id, or of "module:Class".

    Raises:
      UserError: there is no such backend, id or class, or the environment does not accept the parameters.
    """
    if backend not in BACKENDS:
        raise UserError(f"--backend must be one of {', '.join(BACKENDS)}, got {backend}.")
    if backend == "native":
        return _native(env_id, env_kwargs)
    target = find_environment(env_id.removeprefix("jaxenvs/"))
    is_jax = isinstance(target, str) and is_jax_id(target)
    if is_jax and backend not in ("auto", "jax"):
        is_jax, target = False, gymnasium_id(target)
    try:
        made = _made(target, env_kwargs, is_jax)
        # A JAX environment of the user's may break here.
        spaces = made.observation_space, made.action_space
    except jaxenvs.UnknownEnvironment as error:
        if elsewhere := _where_else(env_id):
            raise UserError(f"No environment {env_id!r}.{elsewhere}") from error
        module = env_id.rpartition(":")[0]
        imported = f"{module} was imported, but does not register the environment. " if module else ""
        raise UserError(f"{imported}{error}") from error
    except Exception as error:  # of any kind: the constructor may be the user's
        given = f" with {env_kwargs}" if env_kwargs else ""
        is_absent = isinstance(error, gymnasium.error.DependencyNotInstalled | ImportError)
        hint = _where_else(env_id) if is_absent else ""
        raise UserError(f"{env_id} cannot be made{given}: {described(error)}{hint}") from error
    if isinstance(made, Environment):
        if backend not in ("auto", "jax"):
            raise UserError(f"--backend {backend} needs an environment of Gymnasium, but {env_id} is one of jaxenvs.")
        in_jax, threshold = made, jaxenvs.spec(target).reward_threshold if isinstance(target, str) else None

        def make_jax(num_envs: int, seed: int, wrapper: Callable[..., object] | None = None) -> VecEnv:
            return make_vec_env(in_jax, num_envs, seed, wrapper_class=wrapper, backend="jax")

        return EnvironmentInfo("jax", *spaces, _has_time_limit(made), threshold, False, make_jax)
    if backend == "jax":
        raise UserError(f"--backend jax needs an environment of jaxenvs, but {env_id} is one of Gymnasium.")
    made.close()
    backend = "serial" if backend == "auto" else backend
    spec, is_game = made.spec, "AtariEnv" in type(made.unwrapped).__name__
    has_limit = is_game or (spec is not None and spec.max_episode_steps is not None)

    def make(num_envs: int, seed: int, wrapper: Callable[..., object] | None = None, **further: object) -> VecEnv:
        wrap = AtariWrapper if is_game else wrapper
        return make_vec_env(
            target, num_envs, seed, wrapper_class=wrap, env_kwargs=env_kwargs | further, backend=backend
        )

    return EnvironmentInfo(backend, *spaces, has_limit, None if spec is None else spec.reward_threshold, is_game, make)


def _made(target: Any, env_kwargs: dict[str, object], is_jax: bool) -> Environment[Any] | AnyEnv:
    """Make one environment of an id, or of a class or function.

    Raises:
      UnknownEnvironment: neither jaxenvs nor Gymnasium has the id.
      Exception: of any kind, by the constructor.
    """
    if is_jax:
        return with_arrays(jaxenvs.make(target, **jax_parameters(target, env_kwargs)))
    if isinstance(target, str):
        require_in_gymnasium(target)
    made: object = maker(target, env_kwargs)()
    if not isinstance(made, Environment | gymnasium.Env):
        raise TypeError(f"expected an environment of jaxenvs or Gymnasium, got a {type(made).__name__}.")
    return made


def _has_time_limit(env: Environment[Any]) -> bool:
    while isinstance(env, Wrapper) and not isinstance(env, TimeLimit):
        env = env.env
    return isinstance(env, TimeLimit)


def _where_else(env_id: str) -> str:
    """Return, as the end of an error message, how to train on an id that EnvPool or ale-py may have."""
    with contextlib.suppress(Exception):  # a broken EnvPool does not matter to runs without it
        if ":" not in env_id and _pool_name(env_id) in envpool.ids():
            return " EnvPool has it: add --backend native."
    if env_id.startswith("ALE/") or env_id.endswith("NoFrameskip-v4"):
        return (
            ' Atari games need EnvPool: pip install "jaxenvs[envpool]", and add --backend native. Or ale-py: pip '
            f"install ale-py, and train ale_py:{env_id}."
        )
    return ""


def _pool_name(env_id: str) -> str:
    return native_id(env_id) if env_id.endswith("NoFrameskip-v4") else env_id.removeprefix("ALE/")


def _native(env_id: str, env_kwargs: dict[str, object]) -> EnvironmentInfo:
    with user_errors(Exception, "EnvPool cannot be imported: "):  # a library of many parts may raise anything
        known = envpool.ids()
    if not known:
        raise UserError('--backend native needs EnvPool, which is not installed: pip install "jaxenvs[envpool]".')
    name = _pool_name(env_id)
    if name not in known:
        raise UserError(
            f"EnvPool has no environment {env_id!r}. `jaxenvs list envpool PART` lists the ids that contain PART."
        )
    # The message of a TypeError names the option.
    with user_errors(Exception, f"EnvPool cannot make {env_id} with {env_kwargs}: "), user_errors(TypeError):
        is_game = envpool.is_game(envpool.spec_of(name, {}))
        spec = envpool.spec_of(name, (native_options({}) if is_game else {}) | env_kwargs)
    spaces = envpool.aligned(spec.observation_space, spec.action_space)

    def make(num_envs: int, seed: int, wrapper: None = None, **further: object) -> VecEnv:
        maker = make_atari_env if is_game else make_vec_env
        return maker(name, num_envs, seed, env_kwargs=env_kwargs | further, backend="native")

    return EnvironmentInfo("native", *spaces, True, spec.reward_threshold, is_game, make)
