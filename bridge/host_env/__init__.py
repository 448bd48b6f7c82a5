"""Environments that are not JAX's as Stable-Baselines3's VecEnv: in this process, in others, natively vectorised."""
