"""Evaluation of a Stable-Baselines3 policy in thousands of episodes at once."""

from bridge.evaluation.evaluating import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
