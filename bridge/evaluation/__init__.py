"""evaluate: thousands of episodes of a Stable-Baselines3 policy at once."""

from bridge.evaluation.evaluating import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
