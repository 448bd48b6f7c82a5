"""Functions of arrays applied to observations: of a Box, or of a Dict or Tuple of parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def map_parts(function: Callable[..., object], observation: object, *others: Any) -> Any:
    """Apply a function of arrays to each part of a Dict or Tuple observation, or to the only array.

    Unlike `jax.tree.map`, it keeps the order of a dict, accepts subclasses of dict and tuple, and is faster.

    Args:
      function: takes an array of each observation.
      observation: the observation whose structure counts.
      others: further observations, whose parts are further arguments; they may have more parts.
    """
    if isinstance(observation, dict):
        return {
            name: map_parts(function, part, *[other[name] for other in others]) for name, part in observation.items()
        }
    if isinstance(observation, tuple):
        return tuple(map_parts(function, *parts) for parts in zip(observation, *others))
    return function(observation, *others)


def parts_of(observation: object) -> list[Any]:
    """Return the arrays of an observation, in the order of its space."""
    parts: list[object] = []
    map_parts(parts.append, observation)
    return parts
