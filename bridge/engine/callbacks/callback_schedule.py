"""When callbacks read locals (at which steps, at starts and ends of rollouts), and how long compiled functions may run.

    EvalCallback(eval_freq=4): step   1   2   3   4   5   6   7   8   9   ...
      reads locals at                             #               #
      steps_until_needed              3               3               3
      calls of the compiled function  [- 4 steps -]   [- 4 steps -]   [- ...

`steps_until_needed`, asked before a step, returns for how many of the next steps a callback reads nothing. An
off-policy function may then take these steps and one more, because the callback is shown the last one. `on_step` is
called for all of them, afterwards. An on-policy function runs as many whole iterations as fit into these steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
from jaxenvs.deprecated import warn_renamed

# SB3's callbacks that act only at steps that can be computed ahead. MaskablePPO's callback of evaluations is one too.
ACT_AT_STEPS = (EvalCallback, CheckpointCallback, EveryNTimesteps, LogEveryNTimesteps)
MASKABLE_EVALUATION = ("common.maskable.callbacks", "MaskableEvalCallback")


class ScheduledCallback(BaseCallback):
    """Callback that announces when it next needs to see a step, so that compiled functions can run until then.

    Use it as a base class for callbacks that need few steps. Write `_on_step` as for any callback of SB3; it is called
    at every step. Override `steps_until_needed` to announce the steps that it needs. An announced step runs in SB3's
    own loop, with all of SB3's locals. Other steps run compiled, and `_on_step` is called for them afterwards, when
    the compiled call has returned. `self.locals` then holds only `dones`, and `infos` of the episodes that have ended
    in the step. If `_on_step` writes something or returns False there, this takes effect after the compiled call.

    With off-policy algorithms, a compiled call may run several rollouts. `on_rollout_start` is called when it starts.

    Args:
      verbose: as in SB3's callbacks: 0 for no output, 1 for info messages, 2 for debug messages.
    """

    def steps_until_needed(self, num_timesteps: int, num_envs: int) -> int:
        """Return for how many of the next steps this callback needs no locals, except at the ends of episodes.

        0 announces the next step. The default announces none: the callback needs only the ends of episodes.

        Args:
          num_timesteps: how many steps all environments together have taken.
          num_envs: how many environments there are.

        Returns:
          A number of steps, each of which all environments take together. `self.n_calls` counts such steps, too.
        """
        return sys.maxsize

    def quiet_steps(self, num_timesteps: int, num_envs: int) -> int:
        """Return what `steps_until_needed` returns. Deprecated: use that."""
        warn_renamed("ScheduledCallback.quiet_steps", "ScheduledCallback.steps_until_needed")
        return self.steps_until_needed(num_timesteps, num_envs)


def __getattr__(name: str) -> Any:
    if name == "QuietCallback":
        warn_renamed("QuietCallback", "ScheduledCallback")
        return ScheduledCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def needs_steps(callback: BaseCallback) -> bool:
    """Return whether a callback may read locals: all except SB3's progress bar and its stand-in for no callback."""
    if has_own_methods(callback):
        return True
    if type(callback) is CallbackList:
        return any(needs_steps(part) for part in callback.callbacks)
    if type(callback) is ConvertCallback:
        return callback.callback is not None
    return type(callback) is not ProgressBarCallback


def needs_rollouts(callback: BaseCallback) -> bool:
    """Return whether a callback does something when rollouts begin or end."""
    if type(callback) is CallbackList:
        return any(needs_rollouts(part) for part in callback.callbacks)
    names = ("on_rollout_start", "on_rollout_end", "_on_rollout_start", "_on_rollout_end")
    return has_own_methods(callback) or any(
        getattr(type(callback), name) is not getattr(BaseCallback, name) for name in names
    )


def needs_every_step(callback: BaseCallback) -> bool:
    """Return whether a callback may read locals in every step, not only in the steps that it announces."""
    if has_own_methods(callback):
        return True
    if type(callback) is CallbackList:
        return any(needs_every_step(part) for part in callback.callbacks)
    act_at_steps = (*ACT_AT_STEPS, contrib_class(*MASKABLE_EVALUATION))
    return needs_steps(callback) and not (isinstance(callback, ScheduledCallback) or type(callback) in act_at_steps)


def _announced(callback: ScheduledCallback, num_timesteps: int, num_envs: int) -> int:
    """Return for how many steps a callback announces that it needs no locals, also by the former name of the method."""
    steps = callback.steps_until_needed(num_timesteps, num_envs)
    # Wherever it comes from: the class, a mixin, or an assignment.
    if type(callback).quiet_steps is not ScheduledCallback.quiet_steps:
        warn_renamed(f"{type(callback).__name__}.quiet_steps", "steps_until_needed")
        steps = min(steps, callback.quiet_steps(num_timesteps, num_envs))
    return steps


def steps_until_needed(callback: BaseCallback, num_timesteps: int, num_envs: int, shows_ends: bool = False) -> int:
    """Return for how many of the next steps a callback neither reads locals nor does anything.

    Only SB3's own callbacks are known, by exact type, because subclasses may do anything.

    Args:
      num_timesteps: how many steps all environments together have taken.
      shows_ends: whether a ScheduledCallback is shown the ends of episodes, which it needs.
    """
    if not needs_steps(callback):
        return sys.maxsize
    if has_own_methods(callback):
        return 0
    if type(callback) is CallbackList:
        return min(steps_until_needed(part, num_timesteps, num_envs, shows_ends) for part in callback.callbacks)
    if isinstance(callback, ScheduledCallback):
        return _announced(callback, num_timesteps, num_envs) if shows_ends else 0
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


# The longest time that a Ctrl-C or a progress bar should wait. Returning to the host takes some milliseconds
# off-policy.
SECONDS = 0.2


class Pace:
    """Number of iterations per call that takes about SECONDS. It starts at 1, because the duration is not known yet.

    However training is split into calls, its results are the same.
    """

    def __init__(self) -> None:
        self._count = 1

    def next(self, most: int) -> int:
        """Return how many iterations to run next, at most `most`."""
        return min(self._count, most)

    @contextmanager
    def running(self, count: int) -> Iterator[None]:
        """Measure how long a compiled function takes for a number of iterations."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        if seconds > SECONDS:
            self._count = max(1, count // 2)
        elif seconds < SECONDS / 2:
            self._count = max(self._count, 2 * count)
