"""Environments that hold an environment."""

from jaxenvs.wrappers.time_limit import TimeLimit, TimeLimitState

__all__ = ["TimeLimit", "TimeLimitState"]
