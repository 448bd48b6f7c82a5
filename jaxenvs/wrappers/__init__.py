"""Environments that hold an environment."""

from jaxenvs.wrappers.pixels import Pixels
from jaxenvs.wrappers.time_limit import TimeLimit, TimeLimitState

__all__ = ["Pixels", "TimeLimit", "TimeLimitState"]
