"""make_vectorized: environments of an id that a library steps all at once."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

import jaxenvs
from bridge.environment_ids import gymnasium_spec
from bridge.host_env import envpool
from bridge.host_env.gym_vec_env import GymVecEnv
from jaxenvs.arguments import did_you_mean, instance


def make_vectorized(env_id: Any, n_envs: int, seed: int | None, kwargs: dict[str, Any]) -> GymVecEnv:
    """Return the environments of an id of EnvPool, or of a Gymnasium id with a `vector_entry_point`.

    `kwargs` are options of EnvPool, or keywords of `gymnasium.make_vec`.
    """
    instance("env_id", env_id, str, "an id of EnvPool or Gymnasium, for backend='native'")
    if env_id in envpool.ids():
        if seed is None:  # EnvPool's own default would be the same in every run
            seed = int(np.random.randint(0, 2**31 - 1))  # noqa: NPY002
        pool_env = GymVecEnv(envpool.make(env_id, n_envs, seed, kwargs))
        _align(pool_env, env_id)
        return pool_env
    try:
        spec = gymnasium_spec(env_id)
    except gymnasium.error.UnregisteredEnv:
        spec = None
    if getattr(spec, "vector_entry_point", None) is None:
        if env_id.endswith("NoFrameskip-v4"):
            hint = "For this name of a game, use make_atari_env."
        elif known := envpool.ids():
            hint = did_you_mean(env_id, known) or "`jaxenvs list envpool` lists EnvPool's ids."
        else:
            hint = 'EnvPool is not installed: pip install "jaxenvs[envpool]".'
        raise ValueError(
            "With backend='native', env_id must be an id of an installed EnvPool, or a Gymnasium id with a "
            f"vector_entry_point, got {env_id!r}. {hint}"
        )
    vec_env = GymVecEnv(gymnasium.make_vec(spec, n_envs, vectorization_mode="vector_entry_point", **kwargs))
    vec_env.seed(seed)
    return vec_env


def _align(pool_env: GymVecEnv, env_id: str) -> None:
    """Give an EnvPool the bounds that jaxenvs, and so Gymnasium, has for observations of its id.

    SB3 loads a model for other environments only if their spaces are equal.
    """
    if env_id in jaxenvs.registered():
        known, given = jaxenvs.make(env_id).observation_space, pool_env.observation_space
        if (known.shape, known.dtype) == (given.shape, given.dtype):
            pool_env.observation_space = known
