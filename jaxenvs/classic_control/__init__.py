"""The classic control problems, as Gymnasium has them."""

from jaxenvs.classic_control.cartpole import CartPole, CartPoleState

__all__ = ["CartPole", "CartPoleState"]
