"""Learners as pure functions over `(params, apply)` and a VectorEnv."""

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
from jaxenvs.learn.sweep import sweep

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
    "sweep",
    "train",
]
