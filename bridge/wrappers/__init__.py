"""Stable-Baselines3's wrappers inside a compiled rollout."""
