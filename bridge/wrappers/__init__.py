"""Stable-Baselines3's wrappers in compiled rollouts, a file for each, and the table to which users add their own."""

from bridge.wrappers.chain import Chain, register_wrapper
from bridge.wrappers.compiled_wrapper import CompiledWrapper

__all__ = ["Chain", "CompiledWrapper", "register_wrapper"]
