"""JAX environments, Gymnasium's and native ones as Stable-Baselines3's VecEnv."""

from bridge.vec_env.factory import make_vec_env
from bridge.vec_env.gym_vec_env import GymVecEnv
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.vec_env.native import Buffers, NativeVectorEnv
from bridge.vec_env.native_vec_env import NativeVecEnv

__all__ = ["Buffers", "GymVecEnv", "JaxVecEnv", "NativeVecEnv", "NativeVectorEnv", "make_vec_env"]
