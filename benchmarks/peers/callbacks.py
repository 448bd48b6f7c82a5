"""The callbacks of a cell, the same on both sides, and how often each of them did something."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback

NO_OP, SCHEDULED, EVALUATION = "no-op", "scheduled", "evaluation"
BELOW_ROLLOUT = f"{EVALUATION} below a rollout"
# Calls of on_step from one event of a callback to the next. 256 is no less than a rollout of any cell.
CALLS_BETWEEN = 256

Counts = Callable[[], dict[str, int]]


class NoOp(BaseCallback):
    """Callback that does nothing. SB3 counts its calls."""

    def _on_step(self) -> bool:
        return True


def scheduled(base: Any) -> Any:
    """Return a callback that reads the ends of episodes, and all locals at one step in CALLS_BETWEEN: it announces it.

    Args:
      base: ScheduledCallback of bridge, or for stock SB3 BaseCallback, which is shown every step and never asked.
    """

    class Scheduled(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.returns: list[float] = []
            self.rewards: list[float] = []

        def steps_until_needed(self, num_timesteps: int, num_envs: int) -> int:
            return CALLS_BETWEEN - 1 - int(self.n_calls) % CALLS_BETWEEN

        def _on_step(self) -> bool:
            for index in np.flatnonzero(self.locals["dones"]):
                self.returns.append(self.locals["infos"][index]["episode"]["r"])
            if self.n_calls % CALLS_BETWEEN == 0:
                self.rewards.append(float(self.locals["rewards"].sum()))
            return True

    return Scheduled()


def make(
    cell: Any, is_ours: bool, evaluation_env: Callable[[], Any], folder: Path
) -> tuple[list[BaseCallback], Counts]:
    """Create the callbacks of a `cell.Cell`.

    Args:
      is_ours: whether bridge trains.
      evaluation_env: returns the environment to evaluate on.
      folder: the empty folder for checkpoints.

    Returns:
      The callbacks, and a function that returns by name how often each of them did something.
    """
    if cell.callback == NO_OP:
        no_op = NoOp()
        return [no_op], lambda: {"no-op": no_op.n_calls}
    if cell.callback == SCHEDULED:
        module = "bridge.engine.callbacks.callback_schedule"
        reads = scheduled(importlib.import_module(module).ScheduledCallback if is_ours else BaseCallback)
        return [reads], lambda: {"ends of episodes": len(reads.returns), "announced steps": len(reads.rewards)}
    evaluation: Any = EvalCallback
    if cell.algorithm == "MaskablePPO":  # whose actions must be legal
        evaluation = importlib.import_module("sb3_contrib.common.maskable.callbacks").MaskableEvalCallback
    after = NoOp()  # is called once an evaluation
    options = {"callback_after_eval": after, "n_eval_episodes": 1, "eval_freq": cell.eval_freq}
    evaluates = evaluation(evaluation_env(), **options, verbose=0)
    saves = CheckpointCallback(CALLS_BETWEEN, str(folder))
    return [evaluates, saves], lambda: {"evaluations": after.n_calls, "checkpoints": len(list(folder.glob("*.zip")))}
