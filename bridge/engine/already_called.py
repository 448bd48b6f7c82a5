"""Calls that SB3's `train` does not make again, because an update that was to be compiled has made them.

Users' code in one of these calls may change the model such that the update cannot be compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from bridge.engine.plan import Plan
from bridge.engine.user_code.signals import handlers_wait

_NOTHING = object()


class AlreadyCalled:
    """Function in place of an attribute that returns what the attribute has returned already.

    It removes itself when it has returned all of that, so that other code finds what was there before.
    """

    def __init__(self, owner: object, name: str, results: Iterable[Any]) -> None:
        self._attributes, self._name, self._results = vars(owner), name, list(results)
        self._before = self._attributes.get(name, _NOTHING)
        self._attributes[name] = self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        result = self._results.pop(0)
        if not self._results:
            self.remove()
        return result

    def remove(self) -> None:
        """Put back what was there before, unless something else has been put there."""
        if self._attributes.get(self._name) is not self:
            return
        if self._before is _NOTHING:
            del self._attributes[self._name]
        else:
            self._attributes[self._name] = self._before


class TargetInterval(int):
    """SAC's and TQC's `target_update_interval`, for a `train` that begins after `done` of its gradient steps."""

    done = 0

    def __rmod__(self, gradient_step: int) -> int:
        return (gradient_step + self.done) % int(self)


@contextmanager
def already_called(algorithm: object, plan: Plan, settings: object) -> Iterator[None]:
    """Let SB3's `train` call neither `_update_learning_rate` nor the user's schedules, which have been called."""
    results = {name: getattr(settings, name) for name in ("clip_range", "clip_range_vf") if name in plan.user_code}
    with _placed(algorithm, {"_update_learning_rate": [None], **{name: [each] for name, each in results.items()}}):
        yield


@contextmanager
def already_sampled(algorithm: Any, samples: list[Any], done: int) -> Iterator[None]:
    """Let SB3's `train` begin with samples that have been drawn, after `done` of its gradient steps."""
    interval = vars(algorithm).get("target_update_interval")
    if done and isinstance(interval, int):
        algorithm.target_update_interval = TargetInterval(interval)
        algorithm.target_update_interval.done = done
    try:
        with _placed(algorithm.replay_buffer, {"sample": samples}):
            yield
    finally:
        if isinstance(getattr(algorithm, "target_update_interval", None), TargetInterval):
            algorithm.target_update_interval = interval


@contextmanager
def call_no_more(owner: object, name: str) -> Iterator[None]:
    """Let other code not call a method that has been called, for the first time that it would."""
    with _placed(owner, {name: [None]}):
        yield


@contextmanager
def _placed(owner: object, results: dict[str, list[Any]]) -> Iterator[None]:
    placed: list[AlreadyCalled] = []
    try:
        for name, each in results.items():
            placed.append(AlreadyCalled(owner, name, each))
        yield
    finally:
        with handlers_wait():
            for function in placed:
                function.remove()
