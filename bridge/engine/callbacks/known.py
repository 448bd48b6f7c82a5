"""Table of the callbacks that are known, and when they need a step. Any other callback looks: SB3's own loop runs.

    looks(callback)         SB3's own loop runs in every iteration
    otherwise               compiled functions run for `steps_until_needed` steps; the step after them is announced,
                            and SB3's own loop runs in its iteration
      shows_ends            afterwards, the callback is shown the steps in which episodes ended
      needs_rollouts        it is called when rollouts start and end

TABLE has one row for each known class of SB3, by exact type: a subclass may do anything. So may a method that user code
has put into an instance or a class. `on_step` of a known callback is called at every step, so that it can count.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EventCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    ProgressBarCallback,
)

from bridge.contrib import contrib_class
from bridge.engine.callbacks.callback_schedule import ScheduledCallback
from bridge.originals import has_own_methods, replaced
from bridge.self_play.self_play_callback import SelfPlayCallback


def _until_call(callback: BaseCallback, freq: float) -> float:
    """Return how many calls come before the next one for which `n_calls % freq` is 0."""
    # With a frequency of 0, SB3 divides by it in the next step.
    return abs(freq) - 1 - callback.n_calls % abs(freq) if freq else 0


def _until_evaluation(callback: EvalCallback, *_: int) -> float:
    return _until_call(callback, callback.eval_freq) if callback.eval_freq > 0 else sys.maxsize


def _until_timesteps(callback: EveryNTimesteps, num_timesteps: int, num_envs: int) -> float:
    left: float = callback.n_steps - (num_timesteps - callback.last_time_trigger)
    return -(-left // num_envs) - 1


@dataclass(frozen=True)
class Known:
    """Row of a class of callbacks: when they act, and which callbacks they call.

    The children of an EventCallback need no row: they are called only in the steps in which it acts itself. SB3 passes
    locals on to them in all steps, see `_receives_locals`.

    Attributes:
      steps: returns for how many of the next steps a callback does nothing, as `steps_until_needed`.
      parts: returns what a callback calls in every step, if that is all that it does. A part without a row looks.
    """

    steps: Callable[[Any, int, int], float] = lambda *_: sys.maxsize
    parts: Callable[[Any], Iterable[BaseCallback]] | None = None


TABLE: dict[type, Known] = {
    CallbackList: Known(parts=lambda callback: callback.callbacks),
    ConvertCallback: Known(parts=lambda callback: () if callback.callback is None else (callback.callback,)),
    CheckpointCallback: Known(lambda callback, *_: _until_call(callback, callback.save_freq)),
    EvalCallback: Known(_until_evaluation),
    EventCallback: Known(),
    EveryNTimesteps: Known(_until_timesteps),
    LogEveryNTimesteps: Known(_until_timesteps),
    ProgressBarCallback: Known(),
    SelfPlayCallback: Known(),  # acts when rollouts start
}
# Acts at the steps that its author announces.
SCHEDULED = Known(lambda callback, num_timesteps, num_envs: callback.steps_until_needed(num_timesteps, num_envs))


def looks(callback: BaseCallback) -> bool:
    """Return whether a callback may do anything in any step, so that SB3's own loop has to run for it."""
    each = _called_each_step(callback)
    # Called twice in a step, a callback would count twice as fast as its row says.
    is_repeated = len({id(part) for part, _ in each}) < len(each)
    return is_repeated or any(row is None or any(map(_receives_locals, _children(part))) for part, row in each)


def steps_until_needed(callback: BaseCallback, num_timesteps: int, num_envs: int) -> int:
    """Return for how many of the next steps a callback that does not look neither reads locals nor does anything."""
    least = sys.maxsize
    for part, row in _called_each_step(callback):
        steps = 0 if row is None else row.steps(part, num_timesteps, num_envs)
        least = int(max(0, min(least, steps)))  # frequencies may be floats, and infinite
    return least


def shows_ends(callback: BaseCallback) -> bool:
    """Return whether a callback must be shown the steps in which episodes end, after a compiled function took them."""
    return any(isinstance(part, ScheduledCallback) for part, _ in _called_each_step(callback))


def needs_rollouts(callback: BaseCallback) -> bool:
    """Return whether a callback does something when rollouts start or end. Children of an EventCallback do not."""
    names = ("on_rollout_start", "on_rollout_end", "_on_rollout_start", "_on_rollout_end")
    return any(_overrides(part, (BaseCallback,), *names) for part, _ in _called_each_step(callback))


def rollouts_per_call(callback: BaseCallback) -> float:
    """Return how many rollouts may run in one compiled call: 1 if a callback must see where each of them starts.

    A ScheduledCallback is called where a compiled call starts, as its docstring says.
    """
    parts = [part for part, _ in _called_each_step(callback) if not isinstance(part, ScheduledCallback)]
    return 1 if any(map(needs_rollouts, parts)) else math.inf


def _row(callback: BaseCallback) -> Known | None:
    """Return the row of a callback; None if it looks."""
    if isinstance(callback, ScheduledCallback):
        # Its author answers for its methods, but not for those that user code puts into SB3's class.
        return None if replaced(BaseCallback) else SCHEDULED
    row = TABLE.get(type(callback))
    if row is None and type(callback) is contrib_class("common.maskable.callbacks", "MaskableEvalCallback"):
        row = TABLE[EvalCallback]
    return None if row is None or has_own_methods(callback) else row


def _called_each_step(callback: BaseCallback) -> list[tuple[BaseCallback, Known | None]]:
    """Return the callbacks that are called in every step, with their rows: instead of a list, its parts."""
    row = _row(callback)
    if row is None or row.parts is None:
        return [(callback, row)]
    return [each for part in row.parts(callback) for each in _called_each_step(part)]


def _receives_locals(child: BaseCallback) -> bool:
    """Return whether a child of an EventCallback has custom code for the locals that SB3 passes on in every step."""
    owners = (BaseCallback, CallbackList, EventCallback, EvalCallback)
    return _overrides(child, owners, "update_locals", "update_child_locals") or any(
        map(_receives_locals, _children(child))
    )


def _children(callback: BaseCallback) -> list[BaseCallback]:
    """Return the callbacks to which a callback passes locals on."""
    if isinstance(callback, CallbackList):
        return callback.callbacks
    return [callback.callback] if isinstance(callback, EventCallback) and callback.callback is not None else []


def _overrides(callback: BaseCallback, owners: tuple[type, ...], *names: str) -> bool:
    """Return whether a callback has methods of these names that are not the original ones of `owners`."""
    cls = type(callback)
    return not {*getattr(callback, "__dict__", ()), *replaced(cls)}.isdisjoint(names) or any(
        getattr(cls, name, None) not in (None, *(getattr(owner, name) for owner in owners)) for name in names
    )
