"""Reinforcement-learning environments as pure JAX functions."""

from importlib.metadata import PackageNotFoundError, version

from gymnasium.vector import AutoresetMode

from jaxenvs import spaces
from jaxenvs.checks import check_env
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, static, struct
from jaxenvs.envs.classic_control import Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum
from jaxenvs.registry import Spec, UnknownEnvironment, make, make_vec, register, registered, spec
from jaxenvs.rollout import Trajectory, rollout
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep
from jaxenvs.wrappers import TimeLimit

__all__ = [
    "Acrobot",
    "AutoresetMode",
    "CartPole",
    "Environment",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "Spec",
    "TimeLimit",
    "TimeStep",
    "Trajectory",
    "UnknownEnvironment",
    "VectorEnv",
    "VectorState",
    "VectorTimeStep",
    "Wrapper",
    "check_env",
    "environment",
    "make",
    "make_vec",
    "register",
    "registered",
    "rollout",
    "spaces",
    "spec",
    "static",
    "struct",
]

try:
    __version__ = version("jaxenvs")
except PackageNotFoundError:  # a checkout on the path, not installed
    __version__ = "unknown"

register("CartPole-v0", CartPole, max_episode_steps=200, reward_threshold=195.0)
register("CartPole-v1", CartPole, max_episode_steps=500, reward_threshold=475.0)
register("MountainCar-v0", MountainCar, max_episode_steps=200, reward_threshold=-110.0)
register("MountainCarContinuous-v0", MountainCarContinuous, max_episode_steps=999, reward_threshold=90.0)
register("Pendulum-v1", Pendulum, max_episode_steps=200)
register("Acrobot-v1", Acrobot, max_episode_steps=500, reward_threshold=-100.0)
