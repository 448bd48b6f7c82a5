"""Learners as pure functions over `(params, apply)` and a VectorEnv. `jaxenvs.learn.sweep` runs many at once."""

from jaxenvs.learn.a2c import A2C
from jaxenvs.learn.distributions import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    StateDependentGaussian,
)
from jaxenvs.learn.networks import ActionHead, ActorCritic, Network
from jaxenvs.learn.normalization import Moments, Normalizer
from jaxenvs.learn.on_policy import LearnerState, OnPolicy, Position, Result, Rollout, advantages, collect, start, train
from jaxenvs.learn.ppo import PPO

__all__ = [
    "A2C",
    "PPO",
    "ActionHead",
    "ActorCritic",
    "Bernoulli",
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "LearnerState",
    "Moments",
    "MultiCategorical",
    "Network",
    "Normalizer",
    "OnPolicy",
    "Position",
    "Result",
    "Rollout",
    "StateDependentGaussian",
    "advantages",
    "collect",
    "start",
    "train",
]
