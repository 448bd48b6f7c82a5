"""Reinforcement-learning environments as pure JAX functions."""

from gymnasium.vector import AutoresetMode

from jaxenvs import spaces
from jaxenvs.checks import check_env
from jaxenvs.classic_control import CartPole
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, static, struct
from jaxenvs.registry import Spec, UnknownEnvironment, make, make_vec, register, registered, spec
from jaxenvs.rollout import Trajectory, rollout
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep
from jaxenvs.wrappers import TimeLimit

__all__ = [
    "AutoresetMode",
    "CartPole",
    "Environment",
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

register("CartPole-v0", CartPole, max_episode_steps=200, reward_threshold=195.0)
register("CartPole-v1", CartPole, max_episode_steps=500, reward_threshold=475.0)
