"""Evaluation of a Stable-Baselines3 policy in thousands of episodes at once."""

from bridge.evaluation.evaluating import evaluate
from jaxenvs.rollout import Evaluation

__all__ = ["Evaluation", "evaluate"]
