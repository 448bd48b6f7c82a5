"""The classic control problems, as Gymnasium has them."""

from jaxenvs.envs.classic_control.acrobot import Acrobot, AcrobotState
from jaxenvs.envs.classic_control.cartpole import CartPole, CartPoleState
from jaxenvs.envs.classic_control.mountain_car import MountainCar, MountainCarState
from jaxenvs.envs.classic_control.mountain_car_continuous import MountainCarContinuous
from jaxenvs.envs.classic_control.pendulum import Pendulum, PendulumState

__all__ = [
    "Acrobot",
    "AcrobotState",
    "CartPole",
    "CartPoleState",
    "MountainCar",
    "MountainCarContinuous",
    "MountainCarState",
    "Pendulum",
    "PendulumState",
]
