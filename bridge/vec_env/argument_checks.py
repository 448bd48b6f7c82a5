"""Checks of a JaxVecEnv's arguments, and of the spaces that its environments must share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from bridge.sb3 import Space
from jaxenvs import AutoresetMode, Environment, VectorEnv
from jaxenvs.arguments import integer, positive_int
from jaxenvs.learn import make_mesh
from jaxenvs.learn.devices import require_divisible, require_mesh

# Bytes that Python objects (infos, seeds, options) take for each environment besides its arrays.
BYTES_PER_ENV = 500


# Arguments of SB3's Monitor that VecMonitor lacks, and whether their defaults are true.
MONITOR_DEFAULTS = {"allow_early_resets": True, "reset_keywords": False, "override_existing": True}


def vector_env_of(env: Environment[Any] | VectorEnv, num_envs: int | None) -> VectorEnv:
    """Return the VectorEnv that a JaxVecEnv with these arguments steps."""
    if isinstance(env, Environment):
        return VectorEnv(env, 1 if num_envs is None else num_envs)
    if not isinstance(env, VectorEnv):
        raise TypeError(
            f"env must be a jaxenvs Environment or VectorEnv, got {type(env).__name__}. "
            "For an id, use jaxenvs.sb3.make_vec_env; for Gymnasium environments, SB3's own make_vec_env."
        )
    if num_envs not in (None, env.num_envs):
        raise ValueError(
            f"num_envs must be None or {env.num_envs}, the number of environments in the VectorEnv, got {num_envs!r}."
        )
    if env.autoreset is not AutoresetMode.SAME_STEP:
        raise ValueError(
            f"env must have auto-reset SAME_STEP, as Stable-Baselines3 expects, got a VectorEnv with {env.autoreset}."
        )
    return env


def env_indices_of(indices: VecEnvIndices, num_envs: int) -> list[int]:
    """Return the environment indices that SB3's `indices` means: None is all; an int is one, from the end if negative.

    Anything else but an iterable of ints in range is a ValueError.
    """
    if indices is None:
        return list(range(num_envs))
    is_one = (
        isinstance(indices, str | bytes | Mapping)
        or not isinstance(indices, Iterable)
        or getattr(indices, "ndim", None) == 0
    )
    given: Any = [indices] if is_one else indices
    return [integer("indices", index, -num_envs, num_envs - 1) % num_envs for index in given]


def require_options(options: Sequence[object], num_envs: int) -> None:
    """Raise an IndexError, as SB3 does, if `set_options` was given a list with too few dicts."""
    if len(options) < num_envs:
        raise IndexError(
            f"options must be one dict, or a list with one for each of the {num_envs} environments, got {len(options)}."
        )


def mesh_of(devices: int | Mesh | None, num_envs: int) -> Mesh | None:
    """Return the mesh among whose devices the environments are divided, or None if they are not divided.

    The devices must exist, belong to this process, since others do not step, and divide `num_envs`.
    """
    if devices is None:
        return None
    mesh = require_mesh(devices) if isinstance(devices, Mesh) else make_mesh(positive_int("devices", devices))
    require_divisible("num_envs", num_envs, mesh.size)
    if mesh.is_multi_process:
        raise ValueError(
            "devices must belong to one process. To train over several processes, use learn.train(..., mesh=...)."
        )
    return mesh


def require_memory(num_envs: int, arrays: object) -> None:
    """Raise a ValueError if the environments need more memory than this machine has.

    `arrays` are all that is stored for them, as `jax.ShapeDtypeStruct`s.
    """
    needed = num_envs * BYTES_PER_ENV + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # some systems do not report their memory
        there = 2**40
    if 0 < there < needed:
        raise ValueError(
            f"num_envs = {num_envs} environments need {needed / 2**30:,.0f} GiB, but this machine has "
            f"{there / 2**30:,.0f} GiB."
        )


def shared_spaces(venv: VectorEnv, env_indices: Iterable[int] | None = None) -> tuple[Space, Space]:
    """Return the observation space and the action space that the environments share, and raise if two differ.

    `env_indices` has at least one index; if it is not given, all environments are compared.
    """
    first, *others = range(venv.num_envs) if env_indices is None else env_indices
    env = venv.env_at(first)
    observation_space, action_space = env.observation_space, env.action_space
    for index in others if venv.env_axis is not None else ():
        env = venv.env_at(index)
        for kind, expected, space in (
            ("observation", observation_space, env.observation_space),
            ("action", action_space, env.action_space),
        ):
            if space != expected:
                raise ValueError(
                    f"All environments must have one {kind} space for Stable-Baselines3, but environment {first} "
                    f"has {expected} and environment {index} has {space}."
                )
    return observation_space, action_space


def vec_monitor_kwargs(kwargs: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments with which a VecMonitor does what a Monitor does with `kwargs`; a TypeError if it cannot."""
    others = {name: value for name, value in kwargs.items() if name != "info_keywords"}
    unknown = [name for name, value in others.items() if bool(value) != MONITOR_DEFAULTS.get(name, not value)]
    if unknown:
        given = ", ".join(f"{name}={others[name]!r}" for name in unknown)
        raise TypeError(f"monitor_kwargs accepts only info_keywords and Monitor's default values, got {given}.")
    return {name: value for name, value in kwargs.items() if name == "info_keywords"}


def require_like(what: str, new: tuple[object, object], before: tuple[object, object], changes_all: bool) -> None:
    """Raise a ValueError unless a change keeps the spaces as SB3 expects: the same actions, one observation space.

    The error message calls the change `what`. `new` and `before` are pairs of an observation space and an action space.
    """
    if new[1] != before[1]:
        raise ValueError(
            f"{what} would change the action space to {new[1]}, but it must stay {before[1]}: make a new JaxVecEnv."
        )
    if new[0] != before[0] and not changes_all:
        raise ValueError(
            f"{what} would change the observation space of some environments to {new[0]}, but the others have "
            f"{before[0]}: change all environments, because Stable-Baselines3 has one space for all."
        )
