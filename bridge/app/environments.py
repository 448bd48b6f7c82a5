"""The environments of a run, by their ids: JAX environments, or EnvPool's, with --backend native."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium
from stable_baselines3.common.vec_env import VecEnv

import jaxenvs
from bridge import make_atari_env, make_vec_env
from bridge.atari import native_id, native_options
from bridge.host_env import envpool
from jaxenvs import cli
from jaxenvs.cli import UserError

BACKENDS = ("jax", "native")


@dataclasses.dataclass(frozen=True)
class World:
    """The properties of a run's environments.

    Attributes:
      observation_space, action_space: of one environment.
      has_time_limit: True if every episode ends.
      reward_threshold: the mean return at which the task counts as solved, or None.
      is_game: True for Atari games, which share settings in RL Baselines3 Zoo.
      make: a function from the number of environments and a seed to a VecEnv; further keyword arguments are parameters
        of the environment.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    has_time_limit: bool
    reward_threshold: float | None
    is_game: bool
    make: Callable[..., VecEnv]


def find(backend: str, env_id: str, env_kwargs: dict[str, Any]) -> World:
    """Return the environment of an id.

    Raises:
      UserError: there is no such backend or id, or the environment does not accept the parameters.
    """
    if backend == "native":
        return _native(env_id, env_kwargs)
    if backend != "jax":
        raise UserError(f"--backend must be one of {', '.join(BACKENDS)}, got {backend}.")
    try:
        env = cli.make_environment(env_id, env_kwargs)
    except UserError as error:
        if _pool_has(env_id):
            raise UserError(
                f"jaxenvs has no environment {env_id!r}, but EnvPool has it: add --backend native."
            ) from error
        if env_id in gymnasium.registry and env_id not in jaxenvs.registered():
            raise UserError(
                f"jaxenvs has no environment {env_id!r}, but Gymnasium has it: use bridge.make_vec_env in Python, or, "
                'if EnvPool has it too, --backend native (pip install "jaxenvs[envpool]").'
            ) from error
        raise
    return World(
        env.observation_space,
        env.action_space,
        cli.has_time_limit(env_id, env_kwargs),
        jaxenvs.spec(env_id).reward_threshold,
        False,
        lambda num_envs, seed: make_vec_env(env, num_envs, seed=seed),
    )


def _pool_has(env_id: str) -> bool:
    """Return whether an installed EnvPool has an id that is neither jaxenvs' nor registered by a module."""
    if ":" in env_id or env_id in jaxenvs.registered():
        return False
    with contextlib.suppress(Exception):  # a broken EnvPool does not matter to runs without it
        return _pool_name(env_id) in envpool.ids()
    return False


def _pool_name(env_id: str) -> str:
    return native_id(env_id) if env_id.endswith("NoFrameskip-v4") else env_id.removeprefix("ALE/")


def _native(env_id: str, env_kwargs: dict[str, Any]) -> World:
    try:
        known = envpool.ids()
    except Exception as error:  # importing a library of many parts may raise anything
        raise UserError(f"EnvPool cannot be imported: {type(error).__name__}: {error}") from error
    if not known:
        raise UserError('--backend native needs EnvPool, which is not installed: pip install "jaxenvs[envpool]".')
    name = _pool_name(env_id)
    if name not in known:
        raise UserError(
            f"EnvPool has no environment {env_id!r}. `jaxenvs list envpool PART` lists the ids that contain PART."
        )
    try:
        is_game = envpool.is_game(envpool.spec_of(name, {}))
        options = native_options({}) if is_game else {}
        spec = envpool.spec_of(name, options | env_kwargs)
    except TypeError as error:  # its message names the option
        raise UserError(str(error)) from error
    except Exception as error:
        raise UserError(f"EnvPool cannot make {env_id} with {env_kwargs}: {type(error).__name__}: {error}") from error
    spaces = envpool.aligned(spec.observation_space, spec.action_space)

    def make(num_envs: int, seed: int, **further: Any) -> VecEnv:
        maker = make_atari_env if is_game else make_vec_env
        return maker(name, num_envs, seed, env_kwargs=env_kwargs | further, backend="native")

    return World(*spaces, True, spec.reward_threshold, is_game, make)
