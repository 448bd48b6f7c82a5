"""When callbacks look, at which steps and whether as rollouts begin and end; and how long programs may run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    ProgressBarCallback,
)

from bridge.contrib import contrib_class
from bridge.originals import has_own_methods

# Of SB3's callbacks, those that do nothing but at steps that one can tell; MaskablePPO's of evaluations besides.
ACT_AT_STEPS = (EvalCallback, CheckpointCallback, EveryNTimesteps, LogEveryNTimesteps)
MASKABLE_EVALUATION = ("common.maskable.callbacks", "MaskableEvalCallback")


class QuietCallback(BaseCallback):
    """A callback that says when it looks, so that a program of an off-policy training can run until then.

    `on_step` is called for every step, as ever. Locals are there where an episode ended, `dones` and `infos` alone, and
    all of SB3's in the step that `quiet_steps` tells. `on_rollout_start` is called where programs begin, between two
    steps. PPO and A2C show it every step, as any callback.
    """

    def quiet_steps(self, num_timesteps: int, num_envs: int) -> int:
        """For how many of the next steps it does not look. If not overridden, never but where episodes end.

        Args:
          num_timesteps: so many there were, of all environments together.
        """
        return sys.maxsize


def looks_at_steps(callback: BaseCallback) -> bool:
    """Whether a callback may look at locals. Any may, but SB3's progress bar and its stand-in for no callback."""
    if has_own_methods(callback):
        return True
    if type(callback) is CallbackList:
        return any(looks_at_steps(part) for part in callback.callbacks)
    if type(callback) is ConvertCallback:
        return callback.callback is not None
    return type(callback) is not ProgressBarCallback


def looks_at_rollouts(callback: BaseCallback) -> bool:
    """Whether a callback does something as rollouts begin or end."""
    if type(callback) is CallbackList:
        return any(looks_at_rollouts(part) for part in callback.callbacks)
    names = ("on_rollout_start", "on_rollout_end", "_on_rollout_start", "_on_rollout_end")
    return has_own_methods(callback) or any(
        getattr(type(callback), name) is not getattr(BaseCallback, name) for name in names
    )


def looks_at_each_step(callback: BaseCallback) -> bool:
    """Whether a callback may look at locals in every step, rather than in those that `quiet_steps` tells."""
    if has_own_methods(callback):
        return True
    if type(callback) is CallbackList:
        return any(looks_at_each_step(part) for part in callback.callbacks)
    act_at_steps = (*ACT_AT_STEPS, contrib_class(*MASKABLE_EVALUATION))
    return looks_at_steps(callback) and not (isinstance(callback, QuietCallback) or type(callback) in act_at_steps)


def quiet_steps(callback: BaseCallback, num_timesteps: int, num_envs: int, shows_ends: bool = False) -> int:
    """For how many of the next steps a callback neither looks at locals nor does anything.

    Known are SB3's own: by exact type, because subclasses may do anything.

    Args:
      num_timesteps: so many there were, of all environments together.
      shows_ends: whether it gets what a QuietCallback wants to see.
    """
    if not looks_at_steps(callback):
        return sys.maxsize
    if has_own_methods(callback):
        return 0
    if type(callback) is CallbackList:
        return min(quiet_steps(part, num_timesteps, num_envs, shows_ends) for part in callback.callbacks)
    if isinstance(callback, QuietCallback):
        return callback.quiet_steps(num_timesteps, num_envs) if shows_ends else 0
    if type(callback) in (EvalCallback, contrib_class(*MASKABLE_EVALUATION)):
        assert isinstance(callback, EvalCallback)
        return callback.eval_freq - 1 - callback.n_calls % callback.eval_freq if callback.eval_freq > 0 else sys.maxsize
    if type(callback) is CheckpointCallback:
        return callback.save_freq - 1 - callback.n_calls % callback.save_freq
    if type(callback) in (EveryNTimesteps, LogEveryNTimesteps):
        assert isinstance(callback, EveryNTimesteps)
        left = callback.n_steps - (num_timesteps - callback.last_time_trigger)
        return max(0, -(-left // num_envs) - 1)
    return 0


# So long a Ctrl-C waits, or a progress bar, at most. Coming back to the host takes some milliseconds off-policy.
SECONDS = 0.2


class Pace:
    """Counts of iterations that take about as long as a program may run: 1 at first, as nobody knows how long that is.

    How a training is cut into programs changes none of its numbers.
    """

    def __init__(self) -> None:
        self._count = 1

    def next(self, most: int) -> int:
        """How many iterations to run next, of `most`."""
        return min(self._count, most)

    @contextmanager
    def running(self, count: int) -> Iterator[None]:
        """While a program runs with so many iterations."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        if seconds > SECONDS:
            self._count = max(1, count // 2)
        elif seconds < SECONDS / 2:
            self._count = max(self._count, 2 * count)
