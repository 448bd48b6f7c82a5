"""JAX environments as Stable-Baselines3's VecEnv."""
