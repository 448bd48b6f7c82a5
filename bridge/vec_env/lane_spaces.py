"""The spaces that the environments of a VectorEnv share, and the dtypes of their observations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from gymnasium import spaces

from jaxenvs import VectorEnv


def shared_spaces(venv: VectorEnv, lanes: Iterable[int] | None = None) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return the observation space and the action space that the environments share.

    Args:
      lanes: the indices of the environments, at least one; all if not given.

    Raises:
      ValueError: the spaces of two environments differ.
    """
    first: tuple[int, Any, Any] | None = None
    for lane in range(venv.num_envs) if lanes is None else lanes:
        env = venv.lane_env(lane)
        if first is None:
            first = lane, env.observation_space, env.action_space
        for kind, expected, space in zip(
            ("observation", "action"), first[1:], (env.observation_space, env.action_space)
        ):
            if space != expected:
                raise ValueError(
                    f"All environments must have one {kind} space for Stable-Baselines3, but environment {first[0]} "
                    f"has {expected} and environment {lane} has {space}."
                )
        if venv.env_axis is None:
            break
    assert first is not None
    return first[1], first[2]


def observation_dtypes(space: spaces.Space[Any], batch: Any) -> Any:
    """Return the dtypes of a space, as a pytree with the structure of the environments' observations.

    Args:
      batch: observations of the environments, with a leading axis.

    Raises:
      ValueError: the observations do not have the structure or shapes of the space.
    """
    leaf_spaces = _leaf_spaces(space)
    expected = jax.tree.map(lambda leaf: leaf.shape, leaf_spaces)
    got = jax.tree.map(lambda leaf: leaf.shape[1:], batch)
    if got != expected:
        raise ValueError(f"observation must fit observation_space = {space}, got the shapes {got}.")
    return jax.tree.map(lambda leaf: leaf.dtype, leaf_spaces)


def _leaf_spaces(space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _leaf_spaces(part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_leaf_spaces(part) for part in space)
    return space
