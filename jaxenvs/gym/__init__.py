"""Environments as Gymnasium's classes: gymnasium.Env and gymnasium.vector.VectorEnv."""

from jaxenvs.gym.env import GymnasiumEnv
from jaxenvs.gym.vector_env import GymnasiumVectorEnv

__all__ = ["GymnasiumEnv", "GymnasiumVectorEnv"]
