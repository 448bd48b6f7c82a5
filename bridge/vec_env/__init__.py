"""JAX environments as Stable-Baselines3's VecEnv."""

from bridge.vec_env.factory import make_vec_env
from bridge.vec_env.jax_vec_env import JaxVecEnv

__all__ = ["JaxVecEnv", "make_vec_env"]
