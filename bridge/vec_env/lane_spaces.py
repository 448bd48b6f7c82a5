"""The spaces that the environments of a VectorEnv share, and the dtypes of their observations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from gymnasium import spaces

from bridge.sb3 import Space
from jaxenvs import VectorEnv
from jaxenvs.learn.interfaces import Arrays


def shared_spaces(venv: VectorEnv, lanes: Iterable[int] | None = None) -> tuple[Space, Space]:
    """Return the observation space and the action space that the environments share, and raise if two differ.

    `lanes` are the indices of the environments, at least one; all if not given.
    """
    first, *others = range(venv.num_envs) if lanes is None else lanes
    env = venv.lane_env(first)
    observation_space, action_space = env.observation_space, env.action_space
    for lane in others if venv.env_axis is not None else ():
        env = venv.lane_env(lane)
        for kind, expected, space in (
            ("observation", observation_space, env.observation_space),
            ("action", action_space, env.action_space),
        ):
            if space != expected:
                raise ValueError(
                    f"All environments must have one {kind} space for Stable-Baselines3, but environment {first} "
                    f"has {expected} and environment {lane} has {space}."
                )
    return observation_space, action_space


def observation_dtypes(space: Space, batch: Arrays) -> Any:
    """Return the dtypes of a space in the structure of a batch of observations, which must fit the space."""
    leaf_spaces = _leaf_spaces(space)
    expected = jax.tree.map(lambda leaf: leaf.shape, leaf_spaces)
    got = jax.tree.map(lambda leaf: leaf.shape[1:], batch)
    if got != expected:
        raise ValueError(f"observation must fit observation_space = {space}, got the shapes {got}.")
    return jax.tree.map(lambda leaf: leaf.dtype, leaf_spaces)


def _leaf_spaces(space: Space) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _leaf_spaces(part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_leaf_spaces(part) for part in space)
    return space
