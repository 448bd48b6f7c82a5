"""Environments not written in JAX as Stable-Baselines3 VecEnvs: in this process, in others, natively vectorized."""
