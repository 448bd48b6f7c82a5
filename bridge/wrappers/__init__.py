"""Stable-Baselines3's wrappers in compiled rollouts, a file for each, and the table to which users add their own."""

from bridge.wrappers.compiled_wrapper import CompiledWrapper
from bridge.wrappers.wrapped_env import WrappedEnv, register_wrapper

__all__ = ["CompiledWrapper", "WrappedEnv", "register_wrapper"]
