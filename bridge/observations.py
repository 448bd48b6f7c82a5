"""Observations of a Box, or of a Dict of parts: what is done to one is done to each part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def map_parts(function: Callable[[Any], Any], observation: Any) -> Any:
    """A function of an array over the parts of a Dict observation, or of the one that there is."""
    if isinstance(observation, dict):
        return {name: function(part) for name, part in observation.items()}
    return function(observation)
