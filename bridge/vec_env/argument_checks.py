"""Checks of a JaxVecEnv's arguments."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from jaxenvs import AutoresetMode, Environment, VectorEnv
from jaxenvs.arguments import integer, positive_int
from jaxenvs.learn import make_mesh
from jaxenvs.learn.devices import require_divisible, require_mesh

# Bytes that Python objects (infos, seeds, options) take for each environment besides its arrays.
BYTES_OF_A_LANE = 500


def vector_env_of(env: Environment[Any] | VectorEnv, num_envs: int | None) -> VectorEnv:
    """Return the VectorEnv that a JaxVecEnv steps.

    Args:
      env, num_envs: the arguments of JaxVecEnv.

    Raises:
      TypeError, ValueError: `env` is not an environment of jaxenvs, does not have `num_envs` environments, or does not
        reset as SB3 expects.
    """
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


def lanes_of(indices: VecEnvIndices, num_envs: int) -> list[int]:
    """Return the environment indices that SB3's `indices` means: None is all; an int is one, from the end if negative.

    Raises:
      ValueError: `indices` is not None, an int or an iterable of ints; or an index is out of range.
    """
    if indices is None:
        return list(range(num_envs))
    several = isinstance(indices, list | tuple | range | set) or (isinstance(indices, np.ndarray) and indices.ndim)
    lanes = indices if several else [indices]
    return [integer("indices", lane, -num_envs, num_envs - 1) % num_envs for lane in lanes]  # type: ignore[union-attr]


def mesh_of(devices: int | Mesh | None, num_envs: int) -> Mesh | None:
    """Return the mesh of devices among which the environments are divided, or None if they are not divided.

    Args:
      devices: the number of devices, or a mesh of them.

    Raises:
      TypeError, ValueError: there are fewer devices; `num_envs` is not divisible by their number; or some of the
        devices belong to other processes, which do not step.
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


def require_memory(num_envs: int, arrays: Any) -> None:
    """Raise if the environments need more memory than this machine has.

    Args:
      arrays: what is stored for all environments, as `jax.ShapeDtypeStruct`s.

    Raises:
      ValueError: the machine has less memory than the environments need.
    """
    needed = num_envs * BYTES_OF_A_LANE + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays))
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # some systems do not report their memory
        there = 2**40
    if 0 < there < needed:
        raise ValueError(
            f"num_envs = {num_envs} environments need {needed / 2**30:,.0f} GiB, but this machine has "
            f"{there / 2**30:,.0f} GiB."
        )
