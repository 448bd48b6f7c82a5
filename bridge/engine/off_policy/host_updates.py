"""Updates from samples that are drawn on the host: SB3's `train`, with compiled updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from stable_baselines3.common.type_aliases import TrainFrequencyUnit

from bridge.engine.already_called import already_called, already_sampled
from bridge.engine.plan import Plan
from bridge.engine.update import update_from_samples
from bridge.engine.user_code.signals import handlers_wait
from bridge.errors import NotCompilable
from bridge.replay import PrioritizedReplayBuffer
from bridge.sb3 import OffPolicy
from jaxenvs.learn import OffPolicySettings

MOST_TOGETHER = 128  # gradient steps in one compiled function
LEAST_PRIORITY = 1e-6  # added to errors that become priorities, so that every transition can still be drawn


def train(algorithm: OffPolicy, gradient_steps: int, batch_size: int, by_sb3: Callable[[int], None]) -> None:
    """Update the networks in compiled functions, or by SB3 if they cannot be compiled.

    Args:
      by_sb3: updates them by SB3's `train`, given the number of gradient steps.

    Raises:
      NotCompilable: SB3's `train` would ignore importance weights.
    """
    plan, buffer = algorithm._current_plan(algorithm.env), algorithm.replay_buffer
    if plan.learner is None or buffer is None:
        require_weights_known(buffer, plan)
        return by_sb3(gradient_steps)
    num_before = algorithm._n_updates
    algorithm._update_learning_rate(algorithm._optimizers(plan))
    settings = algorithm._settings_now()
    if not {"replay_buffer"}.issuperset(plan.user_code):  # it may have changed anything
        plan, buffer = algorithm._current_plan(algorithm.env), algorithm.replay_buffer
        if plan.learner is None or buffer is None:
            require_weights_known(buffer, plan)
            with already_called(algorithm, plan, settings):
                return by_sb3(gradient_steps)
    settings = settings.replace(learning_rate=plan.learner.learning_rates())
    # Where the number of updates depends on the length of an episode, each number would be compiled separately.
    is_fixed = algorithm.gradient_steps > 0 or algorithm._frequency.unit is TrainFrequencyUnit.STEP
    # Else one at a time: priorities depend on the batch before, and a user's buffer may read the model.
    prioritized = buffer if isinstance(buffer, PrioritizedReplayBuffer) else None
    most = MOST_TOGETHER if is_fixed and prioritized is None and "replay_buffer" not in plan.user_code else 1
    sums: dict[str, float] = {}
    for first in range(0, gradient_steps, most):
        samples: list[Any] = []
        for _ in range(min(most, gradient_steps - first)):
            algorithm._n_updates += algorithm.COUNTS_BEFORE_SAMPLING
            samples.append(buffer.sample(batch_size, env=algorithm._vec_normalize_env))
        if "replay_buffer" in plan.user_code:  # its `sample` may have changed anything
            plan, buffer = algorithm._current_plan(algorithm.env), algorithm.replay_buffer
            settings = algorithm._settings_now()
            if plan.learner is None:
                algorithm._n_updates = num_before + first
                require_weights_known(buffer, plan)
                with already_called(algorithm, plan, settings), already_sampled(algorithm, samples, first):
                    by_sb3(gradient_steps - first)
                return _record_all(algorithm, settings, sums, num_before, first)
            settings = settings.replace(learning_rate=plan.learner.learning_rates())
        with handlers_wait():
            before, after = num_before + first, num_before + first + len(samples)
            algorithm.key, metrics, errors = update_from_samples(
                plan, settings, before, samples, algorithm.action_space, algorithm.key, first
            )
        if prioritized is not None and errors is not None:
            prioritized.update_priorities(samples[0].indices, errors[0] + LEAST_PRIORITY)
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + value * settings.num_averaged(name, before, after)
    algorithm._n_updates = num_before + gradient_steps
    algorithm._record_compile_time()
    counts = {name: settings.num_averaged(name, num_before, algorithm._n_updates) for name in sums}
    algorithm._record(settings, {name: total / max(counts[name], 1) for name, total in sums.items()}, num_before)
    return None


def _record_all(
    algorithm: OffPolicy, settings: OffPolicySettings, sums: dict[str, float], num_before: int, first: int
) -> None:
    """Log the means of all updates of a `train`, of which SB3 has logged those after the `first` ones."""
    between, logged = num_before + first, getattr(algorithm.logger, "name_to_value", {})
    for name, total in sums.items():
        done = settings.num_averaged(name, num_before, between)
        rest = settings.num_averaged(name, between, algorithm._n_updates)
        if done:
            of_rest = rest * logged.get(f"train/{name}", 0.0)
            logged[f"train/{name}"] = np.float64((total + of_rest) / (done + rest))


def require_weights_known(buffer: object, plan: Plan) -> None:
    """Check that updates use the importance weights of a buffer with priorities.

    Raises:
      NotCompilable: updates are SB3's, which ignore weights.
    """
    if plan.learner is None and isinstance(buffer, PrioritizedReplayBuffer):
        raise NotCompilable(
            "A PrioritizedReplayBuffer requires compiled updates, because SB3's train() ignores importance weights. "
            "Override train() to apply the weights yourself, or change what keeps the updates from being compiled: "
            + " ".join(plan.reasons)
        )
