"""Environments as Stable-Baselines3's VecEnv: JAX environments, Gymnasium's, in this process or others, native ones."""

from bridge.vec_env.factory import make_vec_env
from bridge.vec_env.gym_vec_env import GymVecEnv
from bridge.vec_env.jax_vec_env import JaxVecEnv
from bridge.vec_env.native import Buffers, NativeVectorEnv
from bridge.vec_env.native_vec_env import NativeVecEnv
from bridge.vec_env.process_vec_env import ProcessVecEnv
from bridge.vec_env.serial_vec_env import SerialVecEnv

__all__ = [
    "Buffers",
    "GymVecEnv",
    "JaxVecEnv",
    "NativeVecEnv",
    "NativeVectorEnv",
    "ProcessVecEnv",
    "SerialVecEnv",
    "make_vec_env",
]
