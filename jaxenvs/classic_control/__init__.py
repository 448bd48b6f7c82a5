"""The classic control problems, as Gymnasium has them."""

from jaxenvs.classic_control.acrobot import Acrobot, AcrobotState
from jaxenvs.classic_control.cartpole import CartPole, CartPoleState
from jaxenvs.classic_control.mountain_car import MountainCar, MountainCarState
from jaxenvs.classic_control.mountain_car_continuous import MountainCarContinuous
from jaxenvs.classic_control.pendulum import Pendulum, PendulumState

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
