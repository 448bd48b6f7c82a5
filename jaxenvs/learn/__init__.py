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
from jaxenvs.learn.on_policy import Result, Training, TrainingState, advance, train
from jaxenvs.learn.ppo import PPO
from jaxenvs.learn.rollout import CollectorState, Rollout, advantages, collect
from jaxenvs.learn.settings import LearnerState, OnPolicySettings

__all__ = [
    "A2C",
    "PPO",
    "ActionHead",
    "ActorCritic",
    "Bernoulli",
    "Categorical",
    "CollectorState",
    "DiagonalGaussian",
    "Distribution",
    "LearnerState",
    "Moments",
    "MultiCategorical",
    "Network",
    "Normalizer",
    "OnPolicySettings",
    "Result",
    "Rollout",
    "StateDependentGaussian",
    "Training",
    "TrainingState",
    "advance",
    "advantages",
    "collect",
    "train",
]
