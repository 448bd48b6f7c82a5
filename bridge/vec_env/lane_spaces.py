"""The spaces of the lanes of a VectorEnv, and the dtypes in which they want observations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
from gymnasium import spaces

from jaxenvs import VectorEnv


def shared_spaces(venv: VectorEnv, lanes: Iterable[int] | None = None) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """The observation space and the action space that lanes have in common.

    Args:
      lanes: which, at least one; all if not given.

    Raises:
      ValueError: those of two lanes differ.
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
    """The dtypes of a space, as a pytree of the structure in which the environments give observations.

    Args:
      batch: what they give, with a leading axis.

    Raises:
      ValueError: that is not of the space's structure or shapes.
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
