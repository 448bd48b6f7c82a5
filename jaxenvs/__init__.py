"""Reinforcement-learning environments as pure JAX functions."""

import dataclasses
import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from jaxenvs import compilation as compilation  # first, as it guards what the process compiles from here on
from jaxenvs import spaces
from jaxenvs.checks import check_env
from jaxenvs.drawing.film import gif
from jaxenvs.environment import Environment, TimeStep, Wrapper, environment, static, struct
from jaxenvs.envs import SUITES
from jaxenvs.registry import Spec, UnknownEnvironment, make, make_vec, register, registered, spec
from jaxenvs.rollout import Evaluation, Trajectory, evaluate, rollout
from jaxenvs.vector import VectorEnv, VectorState, VectorTimeStep
from jaxenvs.wrappers import (
    ActionMasker,
    ActionRepeat,
    ClipAction,
    FlattenObservation,
    FrameStack,
    Pixels,
    RandomizedParameters,
    RescaleAction,
    StickyAction,
    TimeLimit,
    TransformObservation,
    TransformReward,
)

if TYPE_CHECKING:
    from jaxenvs.envs.box2d.bipedal_walker import BipedalWalker
    from jaxenvs.envs.box2d.lunar_lander import LunarLander
    from jaxenvs.envs.classic_control.acrobot import Acrobot
    from jaxenvs.envs.classic_control.cartpole import CartPole
    from jaxenvs.envs.classic_control.mountain_car import MountainCar
    from jaxenvs.envs.classic_control.mountain_car_continuous import MountainCarContinuous
    from jaxenvs.envs.classic_control.pendulum import Pendulum
    from jaxenvs.envs.goals.arm_reach import ArmReach
    from jaxenvs.envs.goals.bit_flipping import BitFlipping
    from jaxenvs.envs.minatar.asterix import Asterix
    from jaxenvs.envs.minatar.breakout import Breakout
    from jaxenvs.envs.minatar.freeway import Freeway
    from jaxenvs.envs.minatar.seaquest import Seaquest
    from jaxenvs.envs.minatar.space_invaders import SpaceInvaders
    from jaxenvs.envs.toy_text.blackjack import Blackjack
    from jaxenvs.envs.toy_text.cliff_walking import CliffWalking
    from jaxenvs.envs.toy_text.frozen_lake import FrozenLake
    from jaxenvs.envs.toy_text.taxi import Taxi

__all__ = [
    "Acrobot",
    "ActionMasker",
    "ActionRepeat",
    "ArmReach",
    "Asterix",
    "AutoresetMode",
    "BipedalWalker",
    "BitFlipping",
    "Blackjack",
    "Breakout",
    "CartPole",
    "CliffWalking",
    "ClipAction",
    "Environment",
    "Evaluation",
    "FlattenObservation",
    "FrameStack",
    "Freeway",
    "FrozenLake",
    "LunarLander",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "Pixels",
    "RandomizedParameters",
    "RescaleAction",
    "Seaquest",
    "SpaceInvaders",
    "Spec",
    "StickyAction",
    "Taxi",
    "TimeLimit",
    "TimeStep",
    "Trajectory",
    "TransformObservation",
    "TransformReward",
    "UnknownEnvironment",
    "VectorEnv",
    "VectorState",
    "VectorTimeStep",
    "Wrapper",
    "check_env",
    "environment",
    "evaluate",
    "gif",
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

_modules: dict[str, str] = {}  # the module of each class in the tables of the suites

for _suite in SUITES:
    for _spec in _suite.ENVIRONMENTS:
        register(**dataclasses.asdict(_spec))
        _module, _, _name = _spec.entry_point.partition(":")
        _modules[_name] = _module


def __getattr__(name: str) -> Any:
    """Import an environment class such as `jaxenvs.CartPole`, or `jaxenvs.third_party`, at its first use."""
    if name == "third_party":
        return importlib.import_module("jaxenvs.third_party")
    if name not in _modules:
        raise AttributeError(f"module 'jaxenvs' has no attribute {name!r}")
    return getattr(importlib.import_module(_modules[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_modules})
